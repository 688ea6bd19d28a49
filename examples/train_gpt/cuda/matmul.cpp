// SPDX-License-Identifier: Apache-2.0
#include "cuda/matmul.hpp"

#include "cuda/cuda_check.hpp"
#include "cuda/kernels.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace train_gpt::cuda {
namespace {

// NVIDIA recommends at least 32 MiB for Hopper (cuBLAS documentation, cublasSetWorkspace).
constexpr std::size_t kWorkspace = std::size_t{64} << 20;
constexpr int kMostCandidates = 8;
constexpr int kTimedRuns = 3;
/// Algorithms that split the inner dimension must add their parts in the compute type (fp32). Other
/// schemes add them in the output type, which may be bf16 or fp16. Those that do not split are
/// always allowed.
constexpr std::uint32_t kReductionSchemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;

template <class T>
constexpr cudaDataType_t kDataType = std::is_same_v<T, __nv_bfloat16> ? CUDA_R_16BF
                                     : std::is_same_v<T, __half>      ? CUDA_R_16F
                                                                      : CUDA_R_32F;

/// Returns the largest power of two that divides an address, at most 256. cuBLASLt does not
/// distinguish larger alignments.
std::int64_t alignment_of(const void* data) {
  constexpr std::uintptr_t kMost = 256;
  const auto address = reinterpret_cast<std::uintptr_t>(data) | kMost;
  return static_cast<std::int64_t>(address & (~address + 1));
}

/// Measures the GPU time of the work that is queued between start and stop. `stop` waits for it.
class Timer {
 public:
  Timer() {
    check(cudaEventCreate(&begin_), "an event");
    check(cudaEventCreate(&end_), "an event");
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  ~Timer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  void start(cudaStream_t stream) { check(cudaEventRecord(begin_, stream), "a time stamp"); }
  /// Returns seconds.
  float stop(cudaStream_t stream) {
    check(cudaEventRecord(end_, stream), "a time stamp");
    check(cudaEventSynchronize(end_), "a time stamp");
    float milliseconds = 0.0f;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_), "a time stamp");
    return milliseconds * 1e-3f;
  }

 private:
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

bool listed(std::string_view list, std::string_view word) {
  return ("," + std::string(list) + ",").find("," + std::string(word) + ",") != std::string::npos;
}

}  // namespace

MatmulOptions MatmulOptions::from_environment() {
  MatmulOptions options;
  if (const char* fuse = std::getenv("TRAIN_GPT_FUSE")) {
    options.fuse_gelu = listed(fuse, "gelu");
    options.fuse_bias_gradient = listed(fuse, "bias");
  }
  const char* tune = std::getenv("TRAIN_GPT_TUNE");
  options.tune = tune != nullptr && std::string_view(tune) == "1";
  return options;
}

/// A factor of a product: a matrix of T, or one of fp8 with its scale.
template <class T>
struct Matmul<T>::Operand {
  const void* data;
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t stride;
  bool transposed;
  cudaDataType_t type = kDataType<T>;
  const float* scale = nullptr;

  Operand(const ConstMatrix<T>& m)
      : data(m.data), rows(m.rows), cols(m.cols), stride(m.stride), transposed(m.transposed) {}
  Operand(const Fp8Matrix& m, bool transpose)
      : data(m.data),
        rows(transpose ? m.cols : m.rows),
        cols(transpose ? m.rows : m.cols),
        stride(m.cols),
        transposed(transpose),
        type(m.type),
        scale(m.inverse_scale) {}
};

/// One matrix product: out = a @ b + beta * addend, followed by an epilogue.
template <class T>
struct Matmul<T>::Product {
  Matrix<T> out;
  Operand a;
  Operand b;
  float beta = 0.0f;
  const T* addend = out.data;  // shape and stride of out
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;        // (out.cols); with BGRADA the bias gradient, which is written
  const void* gelu_input = nullptr;  // shape and stride of out
  bool fast_sums = false;            // of fp8: sums of fewer digits
};

// Descriptors and algorithm of a product, created once per Key. cuBLASLt's matrices are
// column-major, and a row-major matrix in memory is the column-major transpose. So b is passed as A
// and a as B, and D = A B (cols x rows) is the transpose of `out`. Then a bias of D's column length
// is added to each row of `out`, and BGRADA sums b over the inner dimension of the product.
template <class T>
struct Matmul<T>::Plan {
  Owned<cublasLtMatmulDesc_t> operation;
  Owned<cublasLtMatrixLayout_t> a, b, c, d;
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;  ///< of the first step or launch that failed
  cublasLtMatmulAlgo_t algorithm{};

  void keep(cublasStatus_t of_step) { status = status == CUBLAS_STATUS_SUCCESS ? of_step : status; }
};

template <class T>
Matmul<T>::Matmul(cudaStream_t stream, std::int64_t widest, MatmulOptions options)
    : stream_(stream),
      options_(options),
      workspace_(kWorkspace, "cuBLASLt's workspace"),
      column_sums_(column_sums_scratch(widest), "column sums"),
      bias_gradient_(widest, "column sums") {
  api_.check(api_.Create(&handle_), "its start");
}

template <class T>
Matmul<T>::~Matmul() {
  plans_.clear();
  api_.Destroy(handle_);
}

template <class T>
typename Matmul<T>::Key Matmul<T>::key_of(const Product& product) {
  return {product.out.cols,
          product.out.rows,
          product.a.cols,
          product.b.stride,
          product.a.stride,
          product.out.stride,
          product.b.transposed ? 1 : 0,
          product.a.transposed ? 1 : 0,
          static_cast<std::int64_t>(product.b.type),
          static_cast<std::int64_t>(product.a.type),
          product.fast_sums ? 1 : 0,
          static_cast<std::int64_t>(product.epilogue),
          alignment_of(product.bias),
          alignment_of(product.gelu_input),
          alignment_of(product.b.data),
          alignment_of(product.a.data),
          alignment_of(product.addend),
          alignment_of(product.out.data)};
}

template <class T>
void Matmul<T>::describe(Plan& plan, const Product& product) const {
  cublasLtMatmulDesc_t operation = nullptr;
  api_.check(api_.MatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "a description");
  plan.operation = {operation, api_.MatmulDescDestroy};
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    plan.keep(api_.MatmulDescSetAttribute(operation, attribute, &value, sizeof value));
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, product.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_TRANSB, product.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, product.epilogue);
  if (product.gelu_input != nullptr) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, product.out.stride);
  }
  if (product.fast_sums) {
    set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{1});
  }
  set_pointers(plan, product);  // the heuristic reads the alignment of these pointers

  const auto layout = [&](cudaDataType_t type, std::int64_t rows, std::int64_t cols,
                          std::int64_t stride) {
    cublasLtMatrixLayout_t handle = nullptr;
    api_.check(api_.MatrixLayoutCreate(&handle, type, static_cast<std::uint64_t>(rows),
                                       static_cast<std::uint64_t>(cols), stride),
               "a layout");
    return Owned<cublasLtMatrixLayout_t>(handle, api_.MatrixLayoutDestroy);
  };
  const auto operand = [&](const Operand& m) {
    return m.transposed ? layout(m.type, m.rows, m.cols, m.stride)
                        : layout(m.type, m.cols, m.rows, m.stride);
  };
  plan.a = operand(product.b);
  plan.b = operand(product.a);
  plan.c = layout(kDataType<T>, product.out.cols, product.out.rows, product.out.stride);
  plan.d = layout(kDataType<T>, product.out.cols, product.out.rows, product.out.stride);
}

template <class T>
void Matmul<T>::set_pointers(Plan& plan, const Product& product) const {
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const void* pointer) {
    if (pointer != nullptr) {
      plan.keep(
          api_.MatmulDescSetAttribute(plan.operation.get(), attribute, &pointer, sizeof pointer));
    }
  };
  set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias);
  set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, product.gelu_input);
  set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, product.b.scale);
  set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, product.a.scale);
}

// Asks cuBLASLt's heuristic for algorithms. Without tuning the first one is used; with tuning all
// are measured with the real operands.
template <class T>
void Matmul<T>::choose_algorithm(Plan& plan, const Product& product, const Key& key) const {
  cublasLtMatmulPreference_t handle = nullptr;
  api_.check(api_.MatmulPreferenceCreate(&handle), "a preference");
  const Owned<cublasLtMatmulPreference_t> preference(handle, api_.MatmulPreferenceDestroy);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    api_.check(api_.MatmulPreferenceSetAttribute(handle, attribute, &value, sizeof value),
               "a preference");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspace);
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, kReductionSchemes);
  constexpr cublasLtMatmulPreferenceAttributes_t kAlignments[] = {
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
  for (std::size_t i = 0; i < std::size(kAlignments); ++i) {
    set(kAlignments[i], static_cast<std::uint32_t>(key[key.size() - 4 + i]));
  }
  std::array<cublasLtMatmulHeuristicResult_t, kMostCandidates> results{};
  int count = 0;
  plan.keep(api_.MatmulAlgoGetHeuristic(handle_, plan.operation.get(), plan.a.get(), plan.b.get(),
                                        plan.c.get(), plan.d.get(), handle, kMostCandidates,
                                        results.data(), &count));
  // Only candidates of this state may be run.
  const auto failed =
      std::remove_if(results.begin(), results.begin() + count,
                     [](const auto& result) { return result.state != CUBLAS_STATUS_SUCCESS; });
  const std::span candidates(results.begin(), failed);
  if (plan.status != CUBLAS_STATUS_SUCCESS || candidates.empty()) {
    plan.keep(CUBLAS_STATUS_NOT_SUPPORTED);
    return;
  }
  plan.algorithm = candidates[0].algo;
  if (!options_.tune || (product.beta != 0.0f && product.addend == product.out.data)) {
    return;  // timing runs would add to the result again and again
  }
  float best = std::numeric_limits<float>::max();
  for (const auto& candidate : candidates) {
    const float time = seconds(plan, candidate.algo, product);
    if (time < best) {
      best = time;
      plan.algorithm = candidate.algo;
    }
  }
}

// Returns the time of kTimedRuns executions, after one that is not measured.
template <class T>
float Matmul<T>::seconds(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm,
                         const Product& product) const {
  if (issue(plan, algorithm, product) != CUBLAS_STATUS_SUCCESS) {
    return std::numeric_limits<float>::max();
  }
  Timer timer;
  timer.start(stream_);
  for (int run = 0; run < kTimedRuns; ++run) {
    issue(plan, algorithm, product);
  }
  return timer.stop(stream_);
}

template <class T>
typename Matmul<T>::Plan& Matmul<T>::plan_of(const Product& product) {
  const Key key = key_of(product);
  std::unique_ptr<Plan>& plan = plans_[key];
  if (plan == nullptr) {
    plan = std::make_unique<Plan>();
    describe(*plan, product);
    choose_algorithm(*plan, product, key);
  }
  return *plan;
}

template <class T>
cublasStatus_t Matmul<T>::issue(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm,
                                const Product& product) const {
  const float alpha = 1.0f;
  return api_.Matmul(handle_, plan.operation.get(), &alpha, product.b.data, plan.a.get(),
                     product.a.data, plan.b.get(), &product.beta, product.addend, plan.c.get(),
                     product.out.data, plan.d.get(), &algorithm, workspace_.data(), kWorkspace,
                     stream_);
}

template <class T>
cublasStatus_t Matmul<T>::run(const Product& product) {
  Plan& plan = plan_of(product);
  set_pointers(plan, product);
  if (plan.status != CUBLAS_STATUS_SUCCESS) {
    return plan.status;
  }
  const cublasStatus_t status = issue(plan, plan.algorithm, product);
  // A capture may fail for reasons of its own.
  if (status != CUBLAS_STATUS_SUCCESS && !is_capturing(stream_)) {
    plan.keep(status);
  }
  return status;
}

template <class T>
void Matmul<T>::add_product(Matrix<T> out, ConstMatrix<T> a, ConstMatrix<T> b, float beta,
                            const T* addend) {
  const cublasStatus_t status = run({.out = out, .a = a, .b = b, .beta = beta, .addend = addend});
  if (status != CUBLAS_STATUS_SUCCESS) {
    const std::string what = "the product of " + std::to_string(out.rows) + " x " +
                             std::to_string(a.cols) + " by " + std::to_string(a.cols) + " x " +
                             std::to_string(out.cols);
    api_.check(status, what.c_str());
  }
}

template <class T>
void Matmul<T>::multiply(Matrix<T> out, ConstMatrix<T> a, ConstMatrix<T> b, float beta) {
  add_product(out, a, b, beta, out.data);
}

template <class T>
void Matmul<T>::linear(Matrix<T> out, ConstMatrix<T> x, ConstMatrix<T> w, const T* bias) {
  if (run({.out = out, .a = x, .b = w, .epilogue = CUBLASLT_EPILOGUE_BIAS, .bias = bias}) !=
      CUBLAS_STATUS_SUCCESS) {
    multiply(out, x, w);
    add_bias(stream_, bias, out.data, out.rows, out.cols);
  }
}

template <class T>
void Matmul<T>::linear_add(Matrix<T> out, ConstMatrix<T> x, ConstMatrix<T> w, const T* bias,
                           const T* residual) {
  if (run({.out = out,
           .a = x,
           .b = w,
           .beta = 1.0f,
           .addend = residual,
           .epilogue = CUBLASLT_EPILOGUE_BIAS,
           .bias = bias}) != CUBLAS_STATUS_SUCCESS) {
    add_product(out, x, w, 1.0f, residual);
    add_bias(stream_, bias, out.data, out.rows, out.cols);
  }
}

/// True if `fused` is faster than the separate product and kernels. Measured once per Key.
template <class T>
bool Matmul<T>::is_faster(const Product& fused, const std::function<void()>& parts) {
  const auto [found, added] = fused_is_faster_.try_emplace(key_of(fused));
  if (added) {
    const Plan& plan = plan_of(fused);
    parts();  // creates the plans before the measurement
    Timer timer;
    timer.start(stream_);
    for (int run = 0; run < kTimedRuns; ++run) {
      parts();
    }
    const float in_parts = timer.stop(stream_);
    found->second =
        plan.status == CUBLAS_STATUS_SUCCESS && seconds(plan, plan.algorithm, fused) < in_parts;
  }
  return found->second;
}

template <class T>
bool Matmul<T>::run_fused_or(bool fuse, const Product& fused, bool repeatable,
                             const std::function<void()>& parts) {
  const bool wanted = options_.tune && repeatable ? is_faster(fused, parts) : fuse;
  if (wanted && run(fused) == CUBLAS_STATUS_SUCCESS) {
    return true;
  }
  parts();
  return false;
}

// In fp32, GELU is always computed by kernels.hpp, because the accuracy of cuBLASLt's GELU is not
// documented.
template <class T>
constexpr bool kMayFuseGelu = sizeof(T) == 2;

template <class T>
void Matmul<T>::linear_gelu(Matrix<T> h, T* u, ConstMatrix<T> x, ConstMatrix<T> w, const T* bias) {
  const auto parts = [&] {
    linear({u, h.rows, h.cols, h.stride}, x, w, bias);
    gelu_forward(stream_, u, h.data, h.rows * h.stride);
  };
  if constexpr (kMayFuseGelu<T>) {
    run_fused_or(options_.fuse_gelu,
                 {.out = h,
                  .a = x,
                  .b = w,
                  .epilogue = CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
                  .bias = bias,
                  .gelu_input = u},
                 true, parts);
  } else {
    parts();
  }
}

template <class T>
void Matmul<T>::multiply_gelu_backward(Matrix<T> du, ConstMatrix<T> dy, ConstMatrix<T> w,
                                       const T* u) {
  const auto parts = [&] {
    multiply(du, dy, w);
    gelu_backward(stream_, u, du.data, du.rows * du.stride);
  };
  if constexpr (kMayFuseGelu<T>) {
    run_fused_or(options_.fuse_gelu,
                 {.out = du, .a = dy, .b = w, .epilogue = CUBLASLT_EPILOGUE_DGELU, .gelu_input = u},
                 true, parts);
  } else {
    parts();
  }
}

template <class T>
void Matmul<T>::weight_gradient(GradientOf<T> dw, GradientOf<T> db, ConstMatrix<T> x,
                                ConstMatrix<T> dy) {
  const Matrix<T> out(dw.data, x.cols, dy.cols);
  // BGRADA overwrites the bias gradient, so one that is added to is computed elsewhere.
  const bool adds = db.beta != 0.0f;
  const Product fused{.out = out,
                      .a = x.t(),
                      .b = dy,
                      .beta = dw.beta,
                      .epilogue = CUBLASLT_EPILOGUE_BGRADA,
                      .bias = adds ? bias_gradient_.data() : db.data};
  const bool repeatable = dw.beta == 0.0f && !adds;
  const bool is_fused = run_fused_or(options_.fuse_bias_gradient, fused, repeatable, [&] {
    multiply(out, x.t(), dy, dw.beta);
    bias_gradient(db, dy);
  });
  if (is_fused && adds) {
    column_sums(stream_, bias_gradient_.data(), db.data, db.beta, column_sums_.data(), 1, dy.cols);
  }
}

template <class T>
void Matmul<T>::bias_gradient(GradientOf<T> db, ConstMatrix<T> dy) {
  column_sums(stream_, dy.data, db.data, db.beta, column_sums_.data(), dy.rows, dy.cols);
}

template <class T>
bool Matmul<T>::multiply_fp8(Matrix<T> out, Fp8Matrix a, Fp8Matrix b, float beta) {
  return run({.out = out, .a = {a, false}, .b = {b, true}, .beta = beta}) == CUBLAS_STATUS_SUCCESS;
}

template <class T>
bool Matmul<T>::linear_fp8(Matrix<T> out, Fp8Matrix a, Fp8Matrix b, const T* bias,
                           const T* residual) {
  Product product{.out = out,
                  .a = {a, false},
                  .b = {b, true},
                  .beta = residual == nullptr ? 0.0f : 1.0f,
                  .addend = residual == nullptr ? out.data : residual,
                  .epilogue = CUBLASLT_EPILOGUE_BIAS,
                  .bias = bias,
                  .fast_sums = true};
  if (run(product) == CUBLAS_STATUS_SUCCESS) {
    return true;
  }
  product.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  product.bias = nullptr;
  if (run(product) != CUBLAS_STATUS_SUCCESS) {
    return false;
  }
  add_bias(stream_, bias, out.data, out.rows, out.cols);
  return true;
}

template class Matmul<float>;
template class Matmul<__nv_bfloat16>;
template class Matmul<__half>;

}  // namespace train_gpt::cuda
