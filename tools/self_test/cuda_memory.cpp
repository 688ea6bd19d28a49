// SPDX-License-Identifier: Apache-2.0
#include "self_test/parameter_memory.hpp"

#include <acc/base/error.hpp>
#include <cuda_runtime_api.h>

#include <string>

namespace self_test {
namespace {

void check(cudaError_t status) {
  if (status != cudaSuccess) {
    throw acc::Error(acc::Errc::device, std::string("a copy of the self-test failed on the GPU: ") +
                                            cudaGetErrorString(status));
  }
}

class CudaMemory final : public ParameterMemory {
 public:
  CudaMemory(void* stream, acc::DType dtype)
      : ParameterMemory(dtype), stream_(static_cast<cudaStream_t>(stream)) {}

 private:
  void to_host(void* to, const void* from, std::size_t nbytes) const override {
    check(cudaMemcpyAsync(to, from, nbytes, cudaMemcpyDeviceToHost, stream_));
    check(cudaStreamSynchronize(stream_));
  }
  void to_device(void* to, const void* from, std::size_t nbytes) const override {
    check(cudaMemcpyAsync(to, from, nbytes, cudaMemcpyHostToDevice, stream_));
    check(cudaStreamSynchronize(stream_));
  }
  cudaStream_t stream_;
};

}  // namespace

std::unique_ptr<ParameterMemory> cuda_parameter_memory(void* stream, acc::DType dtype) {
  return std::make_unique<CudaMemory>(stream, dtype);
}

}  // namespace self_test
