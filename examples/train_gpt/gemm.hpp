#pragma once

#include <cstdint>

namespace train_gpt {

/// A row-major matrix in someone else's memory; `stride` elements lie from row to row.
struct ConstMatrix {
  const float* data;
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t stride;
  bool transposed = false;

  ConstMatrix(const float* values, std::int64_t row_count, std::int64_t col_count)
      : ConstMatrix(values, row_count, col_count, col_count) {}
  ConstMatrix(const float* values, std::int64_t row_count, std::int64_t col_count,
              std::int64_t row_stride)
      : data(values), rows(row_count), cols(col_count), stride(row_stride) {}

  /// The same memory read as the transpose.
  [[nodiscard]] ConstMatrix t() const {
    ConstMatrix result(data, cols, rows, stride);
    result.transposed = !transposed;
    return result;
  }
};

/// The same for a result.
struct Matrix {
  float* data;
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t stride;

  Matrix(float* values, std::int64_t row_count, std::int64_t col_count)
      : Matrix(values, row_count, col_count, col_count) {}
  Matrix(float* values, std::int64_t row_count, std::int64_t col_count, std::int64_t row_stride)
      : data(values), rows(row_count), cols(col_count), stride(row_stride) {}
};

/// out = a @ b + beta * out; with beta 0 the old content of out is not read.
void multiply(Matrix out, ConstMatrix a, ConstMatrix b, float beta = 0.0f);

/// Threads of one product: OMP_NUM_THREADS, or one where it is not set (a worker shares its host).
void set_gemm_threads_from_environment();

}  // namespace train_gpt
