// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/pickle/value.hpp"
#include "acc/checkpoint/tensor/box.hpp"
#include "acc/checkpoint/tensor/dtype.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace acc::checkpoint::torch {

/// A tensor as a pickle describes it, by torch._utils._rebuild_tensor, _v2 or _v3.
struct TensorValue {
  Dtype dtype = Dtype::f32;
  Shape shape;
  std::string_view storage;  ///< its key; the bytes are in the record data/<key>
  Shape strides = {};        ///< in elements; empty: row-major
  std::uint64_t offset = 0;  ///< of the first element in the storage, in bytes
  std::uint64_t nbytes = 0;  ///< from there to the end of the last element
};

/// True if it is a tensor, a parameter, or a tensor with attributes.
bool is_tensor_value(const pickle::Value& value) noexcept;

/// Decodes a tensor. Throws Error(config) that begins with `where` if the value is not a tensor,
/// and Unreadable if its dtype is unsupported.
TensorValue tensor_value(const pickle::Value& value, const std::string& where);

}  // namespace acc::checkpoint::torch
