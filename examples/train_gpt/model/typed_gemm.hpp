// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/gemm.hpp"
#include "model/unit_values.hpp"

#include <acc/runtime.hpp>

#include <cstdint>
#include <vector>

namespace train_gpt {

/// A matrix as a product reads it. `narrow` has no data if the compute dtype is float32.
struct Operand {
  ConstMatrix wide;
  ConstBf16Matrix narrow;
};

/// Matrix products (GEMM) of activations and weights in the model's compute dtype. With bfloat16,
/// activations are converted to bfloat16 first; sums are float32.
class TypedGemm {
 public:
  /// largest: number of elements of the largest activation.
  TypedGemm(acc::DType dtype, std::int64_t largest);

  /// Returns an input or a gradient as an operand, which is valid until the next call of the same
  /// function.
  Operand input(ConstMatrix x) { return operand(x, input_); }
  Operand gradient(ConstMatrix dy) { return operand(dy, gradient_); }

  /// out = a @ w + beta * out
  void apply(Matrix out, const Operand& a, Weight w, float beta = 0.0f);
  /// dw = x^T dy, written directly to the runtime's gradient. x: (N, in), dy: (N, out), dw:
  /// (in, out)
  void weight_gradient(acc::BackwardUse& use, acc::Parameter weight, const Operand& x,
                       const Operand& dy);
  /// dw = x^T dy as float32.
  void weight_gradient(FloatGradient& gradient, const Operand& x, const Operand& dy);

 private:
  Operand operand(ConstMatrix values, std::vector<Bf16>& into) const;

  bool is_float_;
  std::vector<Bf16> input_, gradient_;
};

}  // namespace train_gpt
