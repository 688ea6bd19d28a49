// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <acc/runtime.hpp>

#include <memory>
#include <span>
#include <vector>

namespace self_test {

/// Access to parameters and gradients as fp32 on the host, for any device and dtype of the runtime.
/// Each call waits for the device, because this program need not be fast.
class ParameterMemory {
 public:
  virtual ~ParameterMemory() = default;
  /// Returns `numel` elements, converted to fp32.
  [[nodiscard]] std::vector<float> read(const void* data, std::size_t numel) const;
  /// Adds to a gradient that the runtime has zero-filled.
  void add(void* data, std::span<const float> values) const;

 protected:
  explicit ParameterMemory(acc::DType dtype) : dtype_(dtype) {}

 private:
  virtual void to_host(void* to, const void* from, std::size_t nbytes) const = 0;
  virtual void to_device(void* to, const void* from, std::size_t nbytes) const = 0;
  acc::DType dtype_;
};

/// Returns the object for the device and dtype of a model. Throws acc::Error(device) for a GPU in a
/// build without CUDA.
std::unique_ptr<ParameterMemory> parameter_memory(const acc::Runtime& runtime,
                                                  const acc::Model& model);

#ifdef SELF_TEST_CUDA
std::unique_ptr<ParameterMemory> cuda_parameter_memory(void* stream, acc::DType dtype);
#endif

}  // namespace self_test
