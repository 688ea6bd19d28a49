// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace train_gpt {

/// A view of a row-major matrix in host or GPU memory. stride: elements between the starts of two
/// rows. transposed: the memory holds the transpose of this matrix.
template <class T>
struct ConstMatrixOf {
  const T* data;
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t stride;
  bool transposed = false;

  ConstMatrixOf(const T* values, std::int64_t row_count, std::int64_t col_count)
      : ConstMatrixOf(values, row_count, col_count, col_count) {}
  ConstMatrixOf(const T* values, std::int64_t row_count, std::int64_t col_count,
                std::int64_t row_stride)
      : data(values), rows(row_count), cols(col_count), stride(row_stride) {}

  /// Returns a view of the transpose; the memory is the same.
  [[nodiscard]] ConstMatrixOf t() const {
    ConstMatrixOf result(data, cols, rows, stride);
    result.transposed = !transposed;
    return result;
  }
};

/// A view of a matrix that is written.
template <class T>
struct MatrixOf {
  T* data;
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t stride;

  MatrixOf(T* values, std::int64_t row_count, std::int64_t col_count)
      : MatrixOf(values, row_count, col_count, col_count) {}
  MatrixOf(T* values, std::int64_t row_count, std::int64_t col_count, std::int64_t row_stride)
      : data(values), rows(row_count), cols(col_count), stride(row_stride) {}
};

}  // namespace train_gpt
