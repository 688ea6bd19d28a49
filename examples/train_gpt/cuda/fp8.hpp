// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/device_buffer.hpp"
#include "cuda/kernels.hpp"
#include "cuda/matmul.hpp"

#include <acc/settings/fp8_settings.hpp>
#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace train_gpt::cuda {

/// Factors of products in fp8 have rows and columns of whole vectors of 16 bytes.
constexpr std::int64_t kFp8Vector = 16;

/// Linear layers whose operands are rounded to fp8 with delayed scaling, as in Transformer Engine:
/// each tensor's scale follows from its largest absolute value (amax) in earlier micro-steps. In
/// the first micro-step, and for numbers of rows that are no multiple of 16, products are computed
/// in bf16. Inputs and weights are e4m3; gradients of outputs are e5m2 or e4m3. Scales belong to
/// the rank and are not in checkpoints. All work is queued on one stream.
class Fp8 {
 public:
  using T = __nv_bfloat16;

  /// layers: number of linear layers. rows, channels: largest sizes of an input or output.
  /// weight_numel: of the largest weight. Throws Error(config) if the GPU has no fp8.
  Fp8(cudaStream_t stream, Matmul<T>& matmul, const acc::settings::Fp8Settings& settings,
      std::int64_t layers, std::int64_t rows, std::int64_t channels, std::int64_t weight_numel);

  /// Computes the scales from what has been seen so far.
  void begin_micro_step();
  /// True if this micro-step has scales.
  [[nodiscard]] bool has_scales() const { return micro_steps_ > 1; }

  /// out = x @ w + bias, plus residual if it is not null
  void forward(std::int64_t layer, Matrix<T> out, ConstMatrix<T> x, ConstMatrix<T> w, const T* bias,
               const T* residual);
  /// dx = dy @ w^T, dw = beta * dw + x^T @ dy, db = beta * db + column sums of dy
  void backward(std::int64_t layer, Matrix<T> dx, GradientOf<T> dw, GradientOf<T> db,
                ConstMatrix<T> x, ConstMatrix<T> dy, ConstMatrix<T> w);

 private:
  enum Tensor : std::int64_t { kInput, kWeight, kOutputGradient, kTensors };

  /// A tensor of a layer in fp8, as it is and transposed. Null: not written.
  struct Quantized {
    std::uint8_t* plain;
    std::uint8_t* transposed;
  };
  /// Rounds a tensor to fp8, and records its amax for later scales.
  void quantize(std::int64_t layer, Tensor tensor, ConstMatrix<T> x, Quantized to);
  [[nodiscard]] Fp8Matrix matrix(std::int64_t layer, Tensor tensor, const std::uint8_t* data,
                                 std::int64_t rows, std::int64_t cols) const;
  [[nodiscard]] bool possible(const ConstMatrix<T>& x, const ConstMatrix<T>& w) const;

  cudaStream_t stream_;
  Matmul<T>& matmul_;
  acc::settings::Fp8Settings settings_;
  std::int64_t micro_steps_ = 0;
  Fp8Scales scales_{};
  DeviceBuffer<float> scale_, inverse_, amax_, history_;
  DeviceBuffer<std::uint8_t> input_, input_transposed_;        // (rows, channels)
  DeviceBuffer<std::uint8_t> gradient_, gradient_transposed_;  // (rows, channels)
  DeviceBuffer<std::uint8_t> weight_;                          // (weight_numel)
};

}  // namespace train_gpt::cuda
