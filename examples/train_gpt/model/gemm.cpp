// SPDX-License-Identifier: Apache-2.0
#include "model/gemm.hpp"

#include <cassert>
#include <cstdlib>

// float32 matrix products by oneDNN or by any CBLAS. On this program's shapes oneDNN 2.6 is 3 to 15
// % faster than OpenBLAS 0.3.21 (AVX-512, one thread, 256 and 512 rows), mostly because it does not
// clear the result before it overwrites it.
#ifdef TRAIN_GPT_ONEDNN
#include <dnnl.h>
#include <omp.h>
#else
#include <cblas.h>
#endif

namespace train_gpt {

#ifdef TRAIN_GPT_ONEDNN

void multiply(Matrix out, ConstMatrix a, ConstMatrix b, float beta) {
  assert(out.rows == a.rows && out.cols == b.cols && a.cols == b.rows);
  dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', out.rows, out.cols, a.cols, 1.0f,
             a.data, a.stride, b.data, b.stride, beta, out.data, out.stride);
}

#else

void multiply(Matrix out, ConstMatrix a, ConstMatrix b, float beta) {
  assert(out.rows == a.rows && out.cols == b.cols && a.cols == b.rows);
  const auto size = [](std::int64_t value) { return static_cast<int>(value); };
  const auto order = [](const ConstMatrix& m) { return m.transposed ? CblasTrans : CblasNoTrans; };
  cblas_sgemm(CblasRowMajor, order(a), order(b), size(out.rows), size(out.cols), size(a.cols), 1.0f,
              a.data, size(a.stride), b.data, size(b.stride), beta, out.data, size(out.stride));
}

#endif

void set_gemm_threads_from_environment() {
  const char* text = std::getenv("OMP_NUM_THREADS");
  const int wanted = text == nullptr ? 1 : std::atoi(text);
  [[maybe_unused]] const int threads = wanted > 0 ? wanted : 1;
#if defined(TRAIN_GPT_ONEDNN)
  omp_set_num_threads(threads);
#elif defined(TRAIN_GPT_OPENBLAS)
  openblas_set_num_threads(threads);
#endif  // other BLAS libraries read their own variables
}

}  // namespace train_gpt
