// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/cublaslt.hpp"
#include "cuda/device_buffer.hpp"
#include "model/matrix.hpp"

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>

namespace train_gpt::cuda {

template <class T>
using Matrix = MatrixOf<T>;
template <class T>
using ConstMatrix = ConstMatrixOf<T>;

/// Destination of a gradient: data = beta * data + gradient. With beta 0 the old content is not
/// read.
template <class T>
struct GradientOf {
  T* data;
  float beta;
  bool operator==(const GradientOf&) const = default;
};

/// A row-major matrix of fp8 numbers in GPU memory, aligned to 16 bytes. rows, cols: multiples of
/// 16. inverse_scale: in GPU memory, aligned to 16 bytes; the matrix is data * *inverse_scale.
struct Fp8Matrix {
  const std::uint8_t* data;
  std::int64_t rows;
  std::int64_t cols;
  cudaDataType_t type;  ///< CUDA_R_8F_E4M3 or CUDA_R_8F_E5M2
  const float* inverse_scale;
};

/// Choices for computing matrix products. Results differ only by rounding.
struct MatmulOptions {
  bool fuse_gelu = true;           ///< compute GELU and its gradient in cuBLASLt's epilogue
  bool fuse_bias_gradient = true;  ///< compute bias gradients in cuBLASLt's epilogue
  /// true: measure, once per shape, the algorithms that cuBLASLt proposes, and fused against
  /// separate kernels. false: take its first proposal and the two choices above.
  bool tune = false;

  /// Reads TRAIN_GPT_FUSE (gelu and bias, joined by commas, or none) and TRAIN_GPT_TUNE (1).
  static MatmulOptions from_environment();
};

/// Matrix products by cuBLASLt, queued on one stream. T is __nv_bfloat16 or
/// __half (tensor cores, fp32 sums), or float (no TF32). If cuBLASLt gives an error for a product
/// with a fused epilogue, whatever it is, the plain product and separate kernels are used instead,
/// from then on. Throws Error(device) if a plain product fails.
template <class T>
class Matmul {
 public:
  /// widest: largest number of columns of a weight whose bias has a gradient.
  Matmul(cudaStream_t stream, std::int64_t widest, MatmulOptions options);
  ~Matmul();
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;

  /// out = a @ b + beta * out
  void multiply(Matrix<T> out, ConstMatrix<T> a, ConstMatrix<T> b, float beta = 0.0f);
  /// out = x @ w + bias, bias: (out.cols)
  void linear(Matrix<T> out, ConstMatrix<T> x, ConstMatrix<T> w, const T* bias);
  /// out = residual + x @ w + bias; residual: shape and stride of out
  void linear_add(Matrix<T> out, ConstMatrix<T> x, ConstMatrix<T> w, const T* bias,
                  const T* residual);
  /// u = x @ w + bias and h = gelu(u); u: shape and stride of h
  void linear_gelu(Matrix<T> h, T* u, ConstMatrix<T> x, ConstMatrix<T> w, const T* bias);
  /// du = (dy @ w) * gelu'(u); u: shape and stride of du
  void multiply_gelu_backward(Matrix<T> du, ConstMatrix<T> dy, ConstMatrix<T> w, const T* u);
  /// dw = beta * dw + x^T @ dy and db = beta * db + column sums of dy.
  void weight_gradient(GradientOf<T> dw, GradientOf<T> db, ConstMatrix<T> x, ConstMatrix<T> dy);
  /// db = beta * db + column sums of dy
  void bias_gradient(GradientOf<T> db, ConstMatrix<T> dy);

  // Products of fp8 matrices, of which at most one is e5m2. They return false, and queue nothing,
  // if cuBLASLt cannot compute them.
  /// out = a @ b^T + beta * out
  bool multiply_fp8(Matrix<T> out, Fp8Matrix a, Fp8Matrix b, float beta);
  /// out = a @ b^T + bias, plus residual if it is not null. Sums of fewer digits are allowed.
  bool linear_fp8(Matrix<T> out, Fp8Matrix a, Fp8Matrix b, const T* bias, const T* residual);

 private:
  struct Operand;
  struct Product;
  struct Plan;
  /// Properties by which cuBLASLt chooses an algorithm: sizes, strides, transposes, types,
  /// epilogue, alignments.
  using Key = std::array<std::int64_t, 18>;

  /// Queues a product. If that fails, now or in an earlier call with the same Key, returns the
  /// status and queues nothing.
  cublasStatus_t run(const Product& product);
  /// out = a @ b + beta * addend; addend: shape and stride of out
  void add_product(Matrix<T> out, ConstMatrix<T> a, ConstMatrix<T> b, float beta, const T* addend);
  /// Runs `fused` or `parts`, as the options or, with `tune`, a measurement decide. Returns true if
  /// it ran `fused`. repeatable: timing runs do not change the result.
  bool run_fused_or(bool fuse, const Product& fused, bool repeatable,
                    const std::function<void()>& parts);
  bool is_faster(const Product& fused, const std::function<void()>& parts);
  static Key key_of(const Product& product);
  Plan& plan_of(const Product& product);
  void describe(Plan& plan, const Product& product) const;
  void set_pointers(Plan& plan, const Product& product) const;
  void choose_algorithm(Plan& plan, const Product& product, const Key& key) const;
  cublasStatus_t issue(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm,
                       const Product& product) const;
  [[nodiscard]] float seconds(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm,
                              const Product& product) const;

  cudaStream_t stream_;
  MatmulOptions options_;
  CublasLt api_;
  cublasLtHandle_t handle_ = nullptr;
  DeviceMemory workspace_;
  DeviceBuffer<float> column_sums_;  // working memory of column_sums
  DeviceBuffer<T> bias_gradient_;    // one that is then added to another
  std::map<Key, std::unique_ptr<Plan>> plans_;
  std::map<Key, bool> fused_is_faster_;
};

}  // namespace train_gpt::cuda
