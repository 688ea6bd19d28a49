// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/matrix.hpp"

#include <cstdint>

namespace train_gpt {

using Matrix = MatrixOf<float>;
using ConstMatrix = ConstMatrixOf<float>;
using Bf16 = std::uint16_t;  ///< the upper half of a float32
using Bf16Matrix = MatrixOf<Bf16>;
using ConstBf16Matrix = ConstMatrixOf<Bf16>;

/// out = a @ b + beta * out. With beta 0 the old content of `out` is not read.
void multiply(Matrix out, ConstMatrix a, ConstMatrix b, float beta = 0.0f);

/// True if this build and this CPU multiply bfloat16 faster than float32. If false, the next two
/// functions must not be called.
bool has_bf16_products();
/// Matrix products of bfloat16 with float32 sums.
void multiply(Matrix out, ConstBf16Matrix a, ConstBf16Matrix b, float beta = 0.0f);
void multiply(Bf16Matrix out, ConstBf16Matrix a, ConstBf16Matrix b, float beta = 0.0f);

/// Sets the number of threads per matrix product: OMP_NUM_THREADS, or 1 if it is not set, because
/// several workers share a machine.
void set_gemm_threads_from_environment();

}  // namespace train_gpt
