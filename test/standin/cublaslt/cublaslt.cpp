// SPDX-License-Identifier: Apache-2.0
// A stand-in for libcublasLt on host memory, for tests without a GPU: the functions that train_gpt
// calls, as NVIDIA's documentation describes them, for fp32, bf16, fp16 and fp8 matrices in
// column-major order. Work is queued on the stand-in runtime's streams. A description that the
// documentation forbids is refused with the documented status.

#include "standin/cuda/standin.hpp"

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

namespace {

struct Description {
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cublasOperation_t a_operation = CUBLAS_OP_N;
  cublasOperation_t b_operation = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* bias = nullptr;
  void* auxiliary = nullptr;
  std::int64_t auxiliary_stride = 0;
  const float* a_scale = nullptr;  ///< factors of fp8 operands, in device memory
  const float* b_scale = nullptr;
  std::int8_t fast_accumulation = 0;
};

struct Preference {
  std::uint32_t reduction_schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::uint64_t workspace = 0;
  std::uint32_t alignment = 0;  ///< the last one that was set, of any operand
};

struct Layout {
  cudaDataType_t type;
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t stride;
};

/// One matrix of a product, with its memory.
struct Operand {
  Layout layout;
  void* data;

  [[nodiscard]] float get(std::int64_t row, std::int64_t col) const {
    return get_at(row + col * layout.stride);
  }
  [[nodiscard]] float get_at(std::int64_t index) const {
    switch (layout.type) {
      case CUDA_R_16BF: return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[index]);
      case CUDA_R_16F: return __half2float(static_cast<const __half*>(data)[index]);
      case CUDA_R_8F_E4M3:
        return static_cast<float>(static_cast<const __nv_fp8_e4m3*>(data)[index]);
      case CUDA_R_8F_E5M2:
        return static_cast<float>(static_cast<const __nv_fp8_e5m2*>(data)[index]);
      default: return static_cast<const float*>(data)[index];
    }
  }
  /// Products are never written in fp8.
  void set_at(std::int64_t index, float value) const {
    switch (layout.type) {
      case CUDA_R_16BF:
        static_cast<__nv_bfloat16*>(data)[index] = __float2bfloat16_rn(value);
        break;
      case CUDA_R_16F: static_cast<__half*>(data)[index] = __float2half_rn(value); break;
      default: static_cast<float*>(data)[index] = value;
    }
  }
};

struct Product {
  Description description;
  Operand a, b, c, d;
  float alpha;
  float beta;
  bool rounds_parts;  ///< the inner dimension is split, and its parts are added in the output type

  [[nodiscard]] std::int64_t inner() const {
    return description.a_operation == CUBLAS_OP_N ? a.layout.cols : a.layout.rows;
  }
  [[nodiscard]] bool does(int part) const {
    return (static_cast<int>(description.epilogue) & part) != 0;
  }
};

constexpr int kBias = CUBLASLT_EPILOGUE_BIAS;
constexpr int kGelu = CUBLASLT_EPILOGUE_GELU;
constexpr int kAuxiliary = 128;
constexpr int kGeluGradient = 64;
constexpr std::uint64_t kUsable = 0x5eed;  // first word of an algorithm that may be run

// The tanh approximation.
double gelu(double u) {
  return 0.5 * u * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (u + 0.044715 * u * u * u)));
}

double gelu_slope(double u) {
  const double inner = std::sqrt(2.0 / M_PI) * (u + 0.044715 * u * u * u);
  const double tangent = std::tanh(inner);
  const double d_inner = std::sqrt(2.0 / M_PI) * (1.0 + 3.0 * 0.044715 * u * u);
  return 0.5 * (1.0 + tangent) + 0.5 * u * (1.0 - tangent * tangent) * d_inner;
}

float rounded(float value, cudaDataType_t type) {
  return type == CUDA_R_16F ? __half2float(__float2half_rn(value))
                            : __bfloat162float(__float2bfloat16_rn(value));
}

/// op(matrix) with rows of the result's dimension next to each other: [outer][inner].
std::vector<float> gather(const Operand& matrix, bool outer_is_rows) {
  const std::int64_t outer = outer_is_rows ? matrix.layout.rows : matrix.layout.cols;
  const std::int64_t inner = outer_is_rows ? matrix.layout.cols : matrix.layout.rows;
  std::vector<float> values;
  values.reserve(static_cast<std::size_t>(outer * inner));
  for (std::int64_t o = 0; o < outer; ++o) {
    for (std::int64_t i = 0; i < inner; ++i) {
      values.push_back(outer_is_rows ? matrix.get(o, i) : matrix.get(i, o));
    }
  }
  return values;
}

float finish(const Product& product, std::int64_t row, std::int64_t col, float value) {
  const Operand auxiliary{{product.d.layout.type, product.d.layout.rows, product.d.layout.cols,
                           product.description.auxiliary_stride},
                          product.description.auxiliary};
  if (product.does(kBias)) {
    const Operand bias{product.d.layout, product.description.bias};
    value += bias.get_at(row);
  }
  if (product.does(kGelu)) {
    if (product.does(kAuxiliary)) {
      auxiliary.set_at(row + col * auxiliary.layout.stride, value);
    }
    return static_cast<float>(gelu(value));
  }
  if (product.does(kGeluGradient)) {
    return static_cast<float>(value * gelu_slope(auxiliary.get(row, col)));
  }
  return value;
}

void compute(const Product& product) {
  const auto a = gather(product.a, product.description.a_operation == CUBLAS_OP_N);
  const auto b = gather(product.b, product.description.b_operation != CUBLAS_OP_N);
  const std::int64_t inner = product.inner();
  const auto factor = [](const float* scale) { return scale == nullptr ? 1.0f : *scale; };
  const float scale = factor(product.description.a_scale) * factor(product.description.b_scale);
  if (product.description.epilogue == CUBLASLT_EPILOGUE_BGRADA) {
    const Operand bias{product.d.layout, product.description.bias};
    for (std::int64_t row = 0; row < product.d.layout.rows; ++row) {
      float sum = 0.0f;
      for (std::int64_t k = 0; k < inner; ++k) {
        sum += a[static_cast<std::size_t>(row * inner + k)];
      }
      bias.set_at(row, sum);
    }
  }
  for (std::int64_t col = 0; col < product.d.layout.cols; ++col) {
    const float* right = b.data() + col * inner;
    for (std::int64_t row = 0; row < product.d.layout.rows; ++row) {
      const float* left = a.data() + row * inner;
      float sum = 0.0f;
      for (std::int64_t k = 0; k < inner; ++k) {
        if (product.rounds_parts && k == inner / 2) {
          sum = rounded(sum, product.d.layout.type);
        }
        sum += left[k] * right[k];
      }
      float value = product.alpha * scale * sum;
      if (product.beta != 0.0f) {
        value += product.beta * product.c.get(row, col);
      }
      product.d.set_at(row + col * product.d.layout.stride, finish(product, row, col, value));
    }
  }
}

bool fits(const Layout& layout, std::int64_t rows, std::int64_t cols) {
  return layout.rows == rows && layout.cols == cols && layout.stride >= rows;
}

bool is_fp8(cudaDataType_t type) {
  return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2;
}

/// Conditions for fp8 operands (cuBLAS documentation, cublasLtMatmul, "To use FP8 kernels"): A is
/// transposed and B is not, both have rows and columns of whole 16-byte vectors, not both are e5m2,
/// the result is bf16, and no epilogue but a bias is fused. Only operands of fp8 have scales. What
/// the documentation does not say but cuBLAS 13 does: a scale is aligned to 16 bytes.
bool fp8_allowed(const Description& d, const Layout& a, const Layout& b, const Layout& c,
                 const Layout& out) {
  if (!is_fp8(a.type) && !is_fp8(b.type)) {
    return d.a_scale == nullptr && d.b_scale == nullptr && d.fast_accumulation == 0;
  }
  const auto aligned = [](const Layout& layout) {
    return layout.rows % 16 == 0 && layout.cols % 16 == 0 && layout.stride % 16 == 0;
  };
  const auto aligned_scale = [](const float* scale) {
    return reinterpret_cast<std::uintptr_t>(scale) % 16 == 0;
  };
  return is_fp8(a.type) && is_fp8(b.type) && aligned_scale(d.a_scale) && aligned_scale(d.b_scale) &&
         !(a.type == CUDA_R_8F_E5M2 && b.type == CUDA_R_8F_E5M2) && c.type == CUDA_R_16BF &&
         out.type == CUDA_R_16BF && d.a_operation == CUBLAS_OP_T && d.b_operation == CUBLAS_OP_N &&
         aligned(a) && aligned(b) && aligned(out) &&
         (d.epilogue == CUBLASLT_EPILOGUE_DEFAULT || d.epilogue == CUBLASLT_EPILOGUE_BIAS);
}

/// True if the GPU multiplies fp8: compute capability 8.9 or newer.
bool has_fp8() {
  int device = 0;
  int major = 0;
  int minor = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess &&
         10 * major + minor >= 89;
}

/// True if the description of a matrix product fulfils the documented conditions.
bool allowed(const Description& d, const Layout& a, const Layout& b, const Layout& c,
             const Layout& out) {
  const bool a_plain = d.a_operation == CUBLAS_OP_N;
  const bool b_plain = d.b_operation == CUBLAS_OP_N;
  const std::int64_t inner = a_plain ? a.cols : a.rows;
  const bool plain = a.type == b.type && b.type == c.type && c.type == out.type &&
                     (a.type == CUDA_R_32F || a.type == CUDA_R_16BF || a.type == CUDA_R_16F);
  const bool types = (plain || is_fp8(a.type)) && fp8_allowed(d, a, b, c, out);
  const bool shapes = fits(a, a_plain ? out.rows : inner, a_plain ? inner : out.rows) &&
                      fits(b, b_plain ? inner : out.cols, b_plain ? out.cols : inner) &&
                      fits(c, out.rows, out.cols) && fits(out, out.rows, out.cols);
  const int epilogue = static_cast<int>(d.epilogue);
  const bool auxiliary =
      (epilogue & kAuxiliary) == 0 ||
      (d.auxiliary != nullptr && d.auxiliary_stride % 8 == 0 && d.auxiliary_stride >= out.rows);
  const bool bias =
      ((epilogue & kBias) == 0 && d.epilogue != CUBLASLT_EPILOGUE_BGRADA) || d.bias != nullptr;
  return types && shapes && auxiliary && bias;
}

/// Places at which an epilogue may turn out to be missing.
enum class At { heuristic, state, launch };

/// True if ACC_STANDIN_CUBLASLT_LACKS (numbers of epilogues, separated by commas) has this one and
/// ACC_STANDIN_CUBLASLT_LACKS_AT (state or launch, else the heuristic) names this place.
bool lacks(cublasLtEpilogue_t epilogue, At at) {
  const char* where = std::getenv("ACC_STANDIN_CUBLASLT_LACKS_AT");
  const std::string place = where == nullptr ? "" : where;
  if (at != (place == "state" ? At::state : place == "launch" ? At::launch : At::heuristic)) {
    return false;
  }
  const char* variable = std::getenv("ACC_STANDIN_CUBLASLT_LACKS");
  std::istringstream list(variable == nullptr ? "" : variable);
  for (std::string number; std::getline(list, number, ',');) {
    if (number == std::to_string(static_cast<int>(epilogue))) {
      return true;
    }
  }
  return false;
}

template <class Field>
cublasStatus_t set(Field& field, const void* value, std::size_t nbytes) {
  if (nbytes != sizeof(Field)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  std::memcpy(&field, value, nbytes);
  return CUBLAS_STATUS_SUCCESS;
}

// The library's handles are pointers to opaque structs.
Description& description_of(cublasLtMatmulDesc_t handle) {
  return *reinterpret_cast<Description*>(handle);
}
Layout& layout_of(cublasLtMatrixLayout_t handle) {
  return *reinterpret_cast<Layout*>(handle);
}
Preference& preference_of(cublasLtMatmulPreference_t handle) {
  return *reinterpret_cast<Preference*>(handle);
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  static int one;
  *handle = reinterpret_cast<cublasLtHandle_t>(&one);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t /*handle*/) {
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE" : "another status";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* handle, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  *handle = reinterpret_cast<cublasLtMatmulDesc_t>(new Description{.compute = compute});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t handle) {
  delete &description_of(handle);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t handle,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t nbytes) {
  Description& d = description_of(handle);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return set(d.a_operation, value, nbytes);
    case CUBLASLT_MATMUL_DESC_TRANSB: return set(d.b_operation, value, nbytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return set(d.epilogue, value, nbytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return set(d.bias, value, nbytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return set(d.auxiliary, value, nbytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return set(d.auxiliary_stride, value, nbytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER: return set(d.a_scale, value, nbytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER: return set(d.b_scale, value, nbytes);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM: return set(d.fast_accumulation, value, nbytes);
    default: return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* handle, cudaDataType type,
                                          std::uint64_t rows, std::uint64_t cols,
                                          std::int64_t stride) {
  *handle = reinterpret_cast<cublasLtMatrixLayout_t>(
      new Layout{type, static_cast<std::int64_t>(rows), static_cast<std::int64_t>(cols), stride});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t handle) {
  delete &layout_of(handle);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* handle) {
  *handle = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t handle) {
  delete &preference_of(handle);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t nbytes) {
  Preference& preference = preference_of(handle);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return set(preference.reduction_schemes, value, nbytes);
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return set(preference.workspace, value, nbytes);
    default: return set(preference.alignment, value, nbytes);
  }
}

// The first candidate is one that may not be run. Two others follow, so that the choice between
// them is tested. They add parts of the inner dimension in the output type if the preference allows
// that.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t /*handle*/,
                                              cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* count) {
  *count = 0;
  const Description& description = description_of(operation);
  if (!allowed(description, layout_of(a), layout_of(b), layout_of(c), layout_of(d))) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (lacks(description.epilogue, At::heuristic) || (is_fp8(layout_of(a).type) && !has_fp8())) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const std::uint32_t rounding =
      preference_of(preference).reduction_schemes &
      (CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE);
  for (; *count < most && *count < 3; ++*count) {
    const bool usable = *count > 0 && !lacks(description.epilogue, At::state);
    results[*count].state = usable ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
    results[*count].algo.data[0] = usable ? kUsable : 0;
    results[*count].algo.data[1] = rounding;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t operation,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* /*workspace*/,
                              std::size_t /*workspace_nbytes*/, cudaStream_t stream) {
  const Description& description = description_of(operation);
  if (!allowed(description, layout_of(a_layout), layout_of(b_layout), layout_of(c_layout),
               layout_of(d_layout)) ||
      algorithm->data[0] != kUsable) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  // Of fp8 matrices, the addresses must be aligned too.
  const auto misaligned = [](const void* address) {
    return reinterpret_cast<std::uintptr_t>(address) % 16 != 0;
  };
  if (is_fp8(layout_of(a_layout).type) && (misaligned(a) || misaligned(b) || misaligned(d))) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (lacks(description.epilogue, At::launch)) {
    return CUBLAS_STATUS_INTERNAL_ERROR;
  }
  const bool rounds_parts = algorithm->data[1] != 0 && layout_of(d_layout).type != CUDA_R_32F;
  const Product product{description,
                        {layout_of(a_layout), const_cast<void*>(a)},
                        {layout_of(b_layout), const_cast<void*>(b)},
                        {layout_of(c_layout), const_cast<void*>(c)},
                        {layout_of(d_layout), d},
                        *static_cast<const float*>(alpha),
                        *static_cast<const float*>(beta),
                        rounds_parts};
  return standin::enqueue(stream, [product] { compute(product); }) == cudaSuccess
             ? CUBLAS_STATUS_SUCCESS
             : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
