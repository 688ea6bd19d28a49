#pragma once

#include "checkpoint/pickle/value.hpp"
#include "checkpoint/tensor/box.hpp"
#include "checkpoint/tensor/dtype.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace acc::checkpoint::torch {

/// A tensor as a pickle describes it: torch._utils._rebuild_tensor and _v2, _v3.
struct TensorValue {
  Dtype dtype = Dtype::f32;
  Shape shape;
  std::string_view storage;  ///< its key; the bytes are record data/<key>
  std::uint64_t offset = 0;  ///< bytes in the storage
  std::uint64_t nbytes = 0;  ///< of the elements
};

/// Whether it is a tensor, or a parameter or a tensor with attributes around one.
bool is_tensor_value(const pickle::Value& value) noexcept;

/// Throws Error(config), beginning with `where`, for what is no tensor, is not contiguous in
/// row-major order, or has elements of a class that is not read.
TensorValue tensor_value(const pickle::Value& value, const std::string& where);

}  // namespace acc::checkpoint::torch
