// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/gemm.hpp"
#include "model/unit_values.hpp"

#include <acc/runtime.hpp>

#include <cstdint>
#include <vector>

namespace train_gpt {

/// Matrix products (GEMM) of activations and weights in the model's compute dtype. With bfloat16,
/// activations are converted to bfloat16 first; sums are float32.
class TypedGemm {
 public:
  /// largest: number of elements of the largest activation.
  TypedGemm(acc::DType dtype, std::int64_t largest);

  /// out = a @ w + beta * out
  void apply(Matrix out, ConstMatrix a, Weight w, float beta = 0.0f);
  /// dw = x^T dy, written directly to the runtime's gradient. x: (N, in), dy: (N, out), dw:
  /// (in, out)
  void weight_gradient(acc::BackwardUse& use, acc::Parameter weight, ConstMatrix x, ConstMatrix dy);
  /// dw = x^T dy as float32.
  void weight_gradient(FloatGradient& gradient, ConstMatrix x, ConstMatrix dy);

 private:
  ConstBf16Matrix narrowed(ConstMatrix values, std::vector<Bf16>& into);

  bool is_float_;
  std::vector<Bf16> left_, right_;
};

}  // namespace train_gpt
