// SPDX-License-Identifier: Apache-2.0
#include "self_test/parameter_memory.hpp"

#include <acc/base/error.hpp>

#include <bit>
#include <cstdint>
#include <cstring>

namespace self_test {
namespace {

class HostMemory final : public ParameterMemory {
 public:
  explicit HostMemory(acc::DType dtype) : ParameterMemory(dtype) {}

 private:
  void to_host(void* to, const void* from, std::size_t nbytes) const override {
    std::memcpy(to, from, nbytes);
  }
  void to_device(void* to, const void* from, std::size_t nbytes) const override {
    std::memcpy(to, from, nbytes);
  }
};

float widened(std::uint16_t bfloat16) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bfloat16) << 16U);
}

/// Rounds to nearest, ties to even.
std::uint16_t narrowed(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U);
}

}  // namespace

std::vector<float> ParameterMemory::read(const void* data, std::size_t numel) const {
  std::vector<float> values(numel);
  if (dtype_ == acc::DType::float32) {
    to_host(values.data(), data, numel * sizeof(float));
    return values;
  }
  std::vector<std::uint16_t> narrow(numel);
  to_host(narrow.data(), data, numel * sizeof(std::uint16_t));
  for (std::size_t i = 0; i < numel; ++i) {
    values[i] = widened(narrow[i]);
  }
  return values;
}

void ParameterMemory::add(void* data, std::span<const float> values) const {
  std::vector<float> sums = read(data, values.size());
  for (std::size_t i = 0; i < sums.size(); ++i) {
    sums[i] += values[i];
  }
  if (dtype_ == acc::DType::float32) {
    to_device(data, sums.data(), sums.size() * sizeof(float));
    return;
  }
  std::vector<std::uint16_t> narrow;
  for (const float sum : sums) {
    narrow.push_back(narrowed(sum));
  }
  to_device(data, narrow.data(), narrow.size() * sizeof(std::uint16_t));
}

std::unique_ptr<ParameterMemory> parameter_memory(const acc::Runtime& runtime,
                                                  const acc::Model& model) {
  const acc::DType dtype = model.compute_dtype();
  if (dtype != acc::DType::float32 && dtype != acc::DType::bfloat16) {
    throw acc::Error(acc::Errc::invalid_argument,
                     "the self-test does not compute in " + std::string(acc::to_string(dtype)));
  }
  if (runtime.device().kind == acc::settings::Device::cpu) {
    return std::make_unique<HostMemory>(dtype);
  }
#ifdef SELF_TEST_CUDA
  return cuda_parameter_memory(runtime.device().stream, dtype);
#else
  throw acc::Error(acc::Errc::device, "this build of the self-test has no CUDA; give --cpu");
#endif
}

}  // namespace self_test
