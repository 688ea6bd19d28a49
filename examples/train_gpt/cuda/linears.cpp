// SPDX-License-Identifier: Apache-2.0
#include "cuda/linears.hpp"

#include "cuda/kernels.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

namespace train_gpt::cuda {
namespace {

/// True if products of T may be replaced by products of fp8.
template <class T>
constexpr bool kMayBeFp8 = std::is_same_v<T, Fp8::T>;

/// Shape (in, out) of a layer's weight.
template <class T>
ConstMatrix<T> weight_of(const AffineValues<T>& p, std::int64_t in, std::int64_t out) {
  return {p.weight, in, out};
}

}  // namespace

template <class T>
void Linears<T>::forward(std::int64_t layer, Matrix<T> out, ConstMatrix<T> x, AffineValues<T> p,
                         const T* residual) {
  const ConstMatrix<T> w = weight_of(p, x.cols, out.cols);
  if constexpr (kMayBeFp8<T>) {
    if (fp8_ != nullptr) {
      fp8_->forward(layer, out, x, w, p.bias, residual);
      return;
    }
  }
  residual == nullptr ? matmul_.linear(out, x, w, p.bias)
                      : matmul_.linear_add(out, x, w, p.bias, residual);
}

template <class T>
void Linears<T>::forward_gelu(std::int64_t layer, Matrix<T> h, T* u, ConstMatrix<T> x,
                              AffineValues<T> p) {
  if (fp8_ != nullptr) {
    forward(layer, {u, h.rows, h.cols, h.stride}, x, p);
    gelu_forward(stream_, u, h.data, h.rows * h.stride);
    return;
  }
  matmul_.linear_gelu(h, u, x, weight_of(p, x.cols, h.cols), p.bias);
}

template <class T>
void Linears<T>::backward(std::int64_t layer, Matrix<T> dx, AffineGradients<T> gradients,
                          ConstMatrix<T> x, ConstMatrix<T> dy, AffineValues<T> p) {
  const ConstMatrix<T> w = weight_of(p, x.cols, dy.cols);
  if constexpr (kMayBeFp8<T>) {
    if (fp8_ != nullptr) {
      fp8_->backward(layer, dx, gradients.weight, gradients.bias, x, dy, w);
      return;
    }
  }
  matmul_.weight_gradient(gradients.weight, gradients.bias, x, dy);
  matmul_.multiply(dx, dy, w.t());
}

template <class T>
void Linears<T>::backward_gelu(std::int64_t layer, Matrix<T> du, const T* u,
                               AffineGradients<T> gradients, ConstMatrix<T> x, ConstMatrix<T> dy,
                               AffineValues<T> p) {
  if (fp8_ != nullptr) {
    backward(layer, du, gradients, x, dy, p);
    gelu_backward(stream_, u, du.data, du.rows * du.stride);
    return;
  }
  matmul_.weight_gradient(gradients.weight, gradients.bias, x, dy);
  matmul_.multiply_gelu_backward(du, dy, weight_of(p, x.cols, dy.cols).t(), u);
}

template class Linears<float>;
template class Linears<__nv_bfloat16>;
template class Linears<__half>;

}  // namespace train_gpt::cuda
