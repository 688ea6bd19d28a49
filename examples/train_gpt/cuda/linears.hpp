// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/fp8.hpp"
#include "cuda/matmul.hpp"

#include <cstdint>

namespace train_gpt::cuda {

/// Weight and bias of a linear layer, or scale and shift of a layer norm, for one scope.
template <class T>
struct AffineValues {
  const T* weight;
  const T* bias;
  bool operator==(const AffineValues&) const = default;
};
template <class T>
struct AffineGradients {
  GradientOf<T> weight;
  GradientOf<T> bias;
  bool operator==(const AffineGradients&) const = default;
};

/// The linear layers of all blocks, y = x @ weight + bias: products of T or, with `fp8`, of fp8.
/// Layers have numbers, because in fp8 each has its own scales.
template <class T>
class Linears {
 public:
  /// fp8: null, or for T = __nv_bfloat16 the layers in fp8; must outlive this object, as `matmul`.
  Linears(cudaStream_t stream, Matmul<T>& matmul, Fp8* fp8)
      : stream_(stream), matmul_(matmul), fp8_(fp8) {}

  /// out = x @ w + bias, plus residual (shape and stride of out) if it is not null
  void forward(std::int64_t layer, Matrix<T> out, ConstMatrix<T> x, AffineValues<T> p,
               const T* residual = nullptr);
  /// u = x @ w + bias and h = gelu(u)
  void forward_gelu(std::int64_t layer, Matrix<T> h, T* u, ConstMatrix<T> x, AffineValues<T> p);
  /// dx = dy @ w^T, and the layer's gradients. x: the forward's input
  void backward(std::int64_t layer, Matrix<T> dx, AffineGradients<T> gradients, ConstMatrix<T> x,
                ConstMatrix<T> dy, AffineValues<T> p);
  /// The same for a layer whose input is gelu(u); du instead of dx
  void backward_gelu(std::int64_t layer, Matrix<T> du, const T* u, AffineGradients<T> gradients,
                     ConstMatrix<T> x, ConstMatrix<T> dy, AffineValues<T> p);

 private:
  cudaStream_t stream_;
  Matmul<T>& matmul_;
  Fp8* fp8_;
};

}  // namespace train_gpt::cuda
