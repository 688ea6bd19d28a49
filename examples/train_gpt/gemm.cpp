#include "gemm.hpp"

#include <cassert>
#include <cstdlib>

#ifdef TRAIN_GPT_ONEDNN
#include <dnnl.h>
#include <omp.h>
#endif
#include <cblas.h>

namespace train_gpt {
namespace {

#ifdef TRAIN_GPT_ONEDNN
/// Measured with AVX-512, 512 rows: oneDNN 2.6 is 3 to 15 % faster than OpenBLAS 0.3.21, but for
/// long products with a transposed left side (weight gradients), where it is 10 % slower.
bool onednn_is_faster(const Matrix& out, const ConstMatrix& a) {
  constexpr std::int64_t kLong = 384;
  return !a.transposed || a.cols < kLong || out.rows < kLong;
}

void onednn_multiply(const Matrix& out, const ConstMatrix& a, const ConstMatrix& b, float beta) {
  dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', out.rows, out.cols, a.cols, 1.0f,
             a.data, a.stride, b.data, b.stride, beta, out.data, out.stride);
}
#endif

CBLAS_TRANSPOSE transposition(const ConstMatrix& matrix) {
  return matrix.transposed ? CblasTrans : CblasNoTrans;
}

void blas_multiply(const Matrix& out, const ConstMatrix& a, const ConstMatrix& b, float beta) {
  const auto size = [](std::int64_t value) { return static_cast<int>(value); };
  cblas_sgemm(CblasRowMajor, transposition(a), transposition(b), size(out.rows), size(out.cols),
              size(a.cols), 1.0f, a.data, size(a.stride), b.data, size(b.stride), beta, out.data,
              size(out.stride));
}

}  // namespace

void multiply(Matrix out, ConstMatrix a, ConstMatrix b, float beta) {
  assert(out.rows == a.rows && out.cols == b.cols && a.cols == b.rows);
#ifdef TRAIN_GPT_ONEDNN
  if (onednn_is_faster(out, a)) {
    onednn_multiply(out, a, b, beta);
    return;
  }
#endif
  blas_multiply(out, a, b, beta);
}

void set_gemm_threads_from_environment() {
  const char* text = std::getenv("OMP_NUM_THREADS");
  const int wanted = text == nullptr ? 1 : std::atoi(text);
  const int threads = wanted > 0 ? wanted : 1;
#ifdef TRAIN_GPT_OPENBLAS
  openblas_set_num_threads(threads);
#endif
#ifdef TRAIN_GPT_ONEDNN
  omp_set_num_threads(threads);
#endif
  static_cast<void>(threads);  // another BLAS reads its own variables
}

}  // namespace train_gpt
