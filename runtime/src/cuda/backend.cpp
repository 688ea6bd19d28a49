// SPDX-License-Identifier: Apache-2.0
#include "device/backend.hpp"

#include "acc/base/error.hpp"
#include "acc/base/variables.hpp"
#include "cuda/cuda_device.hpp"
#include "cuda/cuda_error.hpp"
#include "cuda/nccl/make_nccl_group.hpp"
#include "cuda/nccl/nccl_api.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

namespace acc::cuda {
namespace {

// Suffix that explains why GPUs of the machine may be missing.
std::string visible_devices() {
  const auto visible = process_variable(kCudaVisibleVariable);
  return visible ? fmt::format(" ({}={})", kCudaVisibleVariable, *visible) : "";
}

// Message for cudaErrorInsufficientDriver, which CUDA returns both if there is no driver and if the
// driver is too old. Only in the second case does it have a version.
std::string no_usable_driver() {
  int version = 0;
  (void)cudaDriverGetVersion(&version);
  if (version == 0) {
    return "device cuda: there is no NVIDIA driver here (libcuda.so.1 was not found, or does not "
           "load): install the driver, or use --cpu";
  }
  return fmt::format(
      "device cuda: the NVIDIA driver is too old: it supports CUDA {}.{} and this build needs {}.0 "
      "or newer: update the driver, or use --cpu",
      version / 1000, version % 1000 / 10, CUDART_VERSION / 1000);
}

class CudaBackend final : public device::Backend {
 public:
  int device_count() override {
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);
    if (status == cudaSuccess && count > 0) {
      return count;
    }
    if (status == cudaErrorInsufficientDriver) {
      throw Error(Errc::device, no_usable_driver());
    }
    if (status == cudaSuccess || status == cudaErrorNoDevice) {
      throw Error(Errc::device, fmt::format("device cuda: there is a driver, but no GPU{}: use a "
                                            "machine that has one, or --cpu",
                                            visible_devices()));
    }
    throw Error(Errc::device, fmt::format("device cuda: cudaGetDeviceCount: {}", describe(status)));
  }

  device::DevicePtr open(int index) override {
    const int count = device_count();
    if (index < 0 || index >= count) {
      throw Error(Errc::device,
                  fmt::format("device cuda: there is no GPU {}: {} visible, counted "
                              "from 0{}",
                              index, count == 1 ? "1 is" : fmt::format("{} are", count),
                              visible_devices()));
    }
    return open_cuda_device(index);
  }

  int nccl_version() override { return cuda::nccl_version(); }
  std::string nccl_problem() override { return cuda::nccl_problem(); }
  std::shared_ptr<collectives::ProcessGroup> make_nccl_group(
      const collectives::GroupSpec& spec, std::shared_ptr<collectives::ProcessGroup> host,
      device::DevicePtr device, collectives::ProcessGroup* parent, int color,
      const settings::NcclOptions& options) override {
    return cuda::make_nccl_group(spec, std::move(host), std::move(device), parent, color, options);
  }
};

}  // namespace
}  // namespace acc::cuda

// The only exported function of the library; see device/backend.hpp.
extern "C" __attribute__((visibility("default"))) acc::device::Backend* acc_cuda_backend(
    int version) {
  static acc::cuda::CudaBackend backend;
  return version == acc::device::kBackendVersion ? &backend : nullptr;
}
