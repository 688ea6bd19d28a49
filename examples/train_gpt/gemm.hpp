#pragma once

#include "matrix.hpp"

#include <cstdint>

namespace train_gpt {

using Matrix = MatrixOf<float>;
using ConstMatrix = ConstMatrixOf<float>;
using Bf16 = std::uint16_t;  ///< the upper half of a float32
using Bf16Matrix = MatrixOf<Bf16>;
using ConstBf16Matrix = ConstMatrixOf<Bf16>;

/// out = a @ b + beta * out; with beta 0 the old content of out is not read.
void multiply(Matrix out, ConstMatrix a, ConstMatrix b, float beta = 0.0f);

/// Whether this build and this CPU multiply bfloat16 faster than float32; else the next two are not
/// to be called.
bool has_bf16_products();
/// Sums are float32.
void multiply(Matrix out, ConstBf16Matrix a, ConstBf16Matrix b, float beta = 0.0f);
void multiply(Bf16Matrix out, ConstBf16Matrix a, ConstBf16Matrix b, float beta = 0.0f);

/// Threads of one product: OMP_NUM_THREADS, or one where it is not set (a worker shares its host).
void set_gemm_threads_from_environment();

}  // namespace train_gpt
