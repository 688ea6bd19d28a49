// SPDX-License-Identifier: Apache-2.0
#include "model/typed_gemm.hpp"

#include "model/kernels.hpp"

namespace train_gpt {

TypedGemm::TypedGemm(acc::DType dtype, std::int64_t largest)
    : is_float_(dtype == acc::DType::float32) {
  if (!is_float_) {
    left_.resize(static_cast<std::size_t>(largest));
    right_.resize(static_cast<std::size_t>(largest));
  }
}

ConstBf16Matrix TypedGemm::narrowed(ConstMatrix values, std::vector<Bf16>& into) {
  narrow(values.data, into.data(), values.rows * values.cols);
  return {into.data(), values.rows, values.cols};
}

// Weights are used as the runtime stores them; only activations are converted.
void TypedGemm::apply(Matrix out, ConstMatrix a, Weight w, float beta) {
  const std::int64_t stride = w.transposed ? w.rows : w.cols;
  if (is_float_) {
    ConstMatrix b(static_cast<const float*>(w.data), w.rows, w.cols, stride);
    b.transposed = w.transposed;
    multiply(out, a, b, beta);
  } else {
    ConstBf16Matrix b(static_cast<const Bf16*>(w.data), w.rows, w.cols, stride);
    b.transposed = w.transposed;
    multiply(out, narrowed(a, left_), b, beta);
  }
}

void TypedGemm::weight_gradient(acc::BackwardUse& use, acc::Parameter weight, ConstMatrix x,
                                ConstMatrix dy) {
  const acc::RawGradient place = use.raw_grad(weight);
  if (is_float_) {
    multiply({static_cast<float*>(place.data), x.cols, dy.cols}, x.t(), dy, place.beta);
  } else {
    multiply({static_cast<Bf16*>(place.data), x.cols, dy.cols}, narrowed(x, left_).t(),
             narrowed(dy, right_), place.beta);
  }
}

void TypedGemm::weight_gradient(FloatGradient& gradient, ConstMatrix x, ConstMatrix dy) {
  const Matrix out(gradient.data(), x.cols, dy.cols);
  const float beta = gradient.next_beta();
  if (is_float_) {
    multiply(out, x.t(), dy, beta);
  } else {
    multiply(out, narrowed(x, left_).t(), narrowed(dy, right_), beta);
  }
}

}  // namespace train_gpt
