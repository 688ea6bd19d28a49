// SPDX-License-Identifier: Apache-2.0
#include "model/typed_gemm.hpp"

#include "model/kernels.hpp"

namespace train_gpt {

TypedGemm::TypedGemm(acc::DType dtype, std::int64_t largest)
    : is_float_(dtype == acc::DType::float32) {
  if (!is_float_) {
    input_.resize(static_cast<std::size_t>(largest));
    gradient_.resize(static_cast<std::size_t>(largest));
  }
}

Operand TypedGemm::operand(ConstMatrix values, std::vector<Bf16>& into) const {
  if (!is_float_) {
    narrow(values.data, into.data(), values.rows * values.cols);
  }
  return {values, {into.data(), values.rows, values.cols}};
}

// Weights are used as the runtime stores them; only activations are converted.
void TypedGemm::apply(Matrix out, const Operand& a, Weight w, float beta) {
  const std::int64_t stride = w.transposed ? w.rows : w.cols;
  if (is_float_) {
    ConstMatrix b(static_cast<const float*>(w.data), w.rows, w.cols, stride);
    b.transposed = w.transposed;
    multiply(out, a.wide, b, beta);
  } else {
    ConstBf16Matrix b(static_cast<const Bf16*>(w.data), w.rows, w.cols, stride);
    b.transposed = w.transposed;
    multiply(out, a.narrow, b, beta);
  }
}

void TypedGemm::weight_gradient(acc::BackwardUse& use, acc::Parameter weight, const Operand& x,
                                const Operand& dy) {
  const acc::RawGradient place = use.raw_grad(weight);
  const std::int64_t rows = x.wide.cols;
  const std::int64_t cols = dy.wide.cols;
  if (is_float_) {
    multiply({static_cast<float*>(place.data), rows, cols}, x.wide.t(), dy.wide, place.beta);
  } else {
    multiply({static_cast<Bf16*>(place.data), rows, cols}, x.narrow.t(), dy.narrow, place.beta);
  }
}

void TypedGemm::weight_gradient(FloatGradient& gradient, const Operand& x, const Operand& dy) {
  const Matrix out(gradient.data(), x.wide.cols, dy.wide.cols);
  const float beta = gradient.next_beta();
  if (is_float_) {
    multiply(out, x.wide.t(), dy.wide, beta);
  } else {
    multiply(out, x.narrow.t(), dy.narrow, beta);
  }
}

}  // namespace train_gpt
