#pragma once

#include "matrix.hpp"

namespace train_gpt {

using Matrix = MatrixOf<float>;
using ConstMatrix = ConstMatrixOf<float>;

/// out = a @ b + beta * out; with beta 0 the old content of out is not read.
void multiply(Matrix out, ConstMatrix a, ConstMatrix b, float beta = 0.0f);

/// Threads of one product: OMP_NUM_THREADS, or one where it is not set (a worker shares its host).
void set_gemm_threads_from_environment();

}  // namespace train_gpt
