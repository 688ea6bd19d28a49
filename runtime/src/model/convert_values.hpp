// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/runtime/types.hpp"

#include <cstddef>
#include <optional>

namespace acc::model {

/// Converts values of a buffer between dtypes. Floating point numbers, also complex ones, are
/// rounded to nearest even; any other change of dtype must keep every value. Returns the index of
/// the first value that `to_dtype` cannot hold; absent: all values were converted. 8-bit floats are
/// not converted. from, to: [numel], any alignment.
std::optional<std::size_t> convert_values(const void* from, DType from_dtype, void* to,
                                          DType to_dtype, std::size_t numel);
/// True if `convert_values` converts between the dtypes.
bool converts(DType from, DType to) noexcept;

}  // namespace acc::model
