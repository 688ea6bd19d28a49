// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "cuda/cublaslt.hpp"
#include "cuda/nccl/nccl_api.hpp"

#include <doctest/doctest.h>
#include <nccl.h>

#include <array>
#include <cstdlib>
#include <vector>

// The real libcublasLt and libnccl, as far as they work without a driver, against what the programs
// and the stand-ins assume.
namespace {

using train_gpt::cuda::CublasLt;
using train_gpt::cuda::Owned;

CublasLt open_cublaslt(const char* path) {
  ::setenv("ACC_CUBLASLT_LIBRARY", path, 1);
  return {};
}

template <class Handle, class Create>
Owned<Handle> make(const Create& create, typename Owned<Handle>::Destroy destroy) {
  Handle handle = nullptr;
  REQUIRE(create(&handle) == CUBLAS_STATUS_SUCCESS);
  return {handle, destroy};
}

constexpr std::array<std::size_t, 5> kSizes = {1, 2, 4, 8, 16};
using Statuses = std::vector<cublasStatus_t>;

/// Statuses of setting each attribute with each size to zero.
template <class Attributes, class Set>
Statuses statuses(const Attributes& attributes, const Set& set) {
  const std::array<std::byte, 16> zeros{};
  Statuses found;
  for (const auto attribute : attributes) {
    for (const std::size_t size : kSizes) {
      found.push_back(set(attribute, zeros.data(), size));
    }
  }
  return found;
}

Statuses of_description(const CublasLt& api) {
  const auto handle = make<cublasLtMatmulDesc_t>(
      [&](auto* to) { return api.MatmulDescCreate(to, CUBLAS_COMPUTE_32F, CUDA_R_32F); },
      api.MatmulDescDestroy);
  constexpr std::array kAttributes = {
      CUBLASLT_MATMUL_DESC_TRANSA,          CUBLASLT_MATMUL_DESC_TRANSB,
      CUBLASLT_MATMUL_DESC_EPILOGUE,        CUBLASLT_MATMUL_DESC_BIAS_POINTER,
      CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
      CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
      CUBLASLT_MATMUL_DESC_FAST_ACCUM};
  return statuses(kAttributes, [&](auto attribute, const void* value, std::size_t size) {
    return api.MatmulDescSetAttribute(handle.get(), attribute, value, size);
  });
}

Statuses of_preference(const CublasLt& api) {
  const auto handle =
      make<cublasLtMatmulPreference_t>(api.MatmulPreferenceCreate, api.MatmulPreferenceDestroy);
  constexpr std::array kAttributes = {
      CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,   CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
  return statuses(kAttributes, [&](auto attribute, const void* value, std::size_t size) {
    return api.MatmulPreferenceSetAttribute(handle.get(), attribute, value, size);
  });
}

}  // namespace

TEST_CASE(
    "libcublasLt takes the attributes of the programs, with the sizes that the stand-in takes") {
  const CublasLt real = open_cublaslt(ACC_REAL_CUBLASLT);
  const CublasLt standin = open_cublaslt(ACC_STANDIN_CUBLASLT);
  CHECK(of_description(real) == of_description(standin));
  CHECK(of_preference(real) == of_preference(standin));
  for (const auto type : {CUDA_R_16BF, CUDA_R_16F, CUDA_R_8F_E4M3, CUDA_R_8F_E5M2}) {
    const auto layout = make<cublasLtMatrixLayout_t>(
        [&](auto* to) { return real.MatrixLayoutCreate(to, type, 16, 16, 16); },
        real.MatrixLayoutDestroy);
    CHECK(layout.get() != nullptr);
  }
}

TEST_CASE("libnccl has every function that the runtime binds, and the version of its header") {
  ::setenv("ACC_NCCL_LIBRARY", ACC_REAL_NCCL, 1);
  const acc::cuda::NcclApi* const api = acc::cuda::nccl_api();
  CAPTURE(acc::cuda::nccl_problem());
  REQUIRE(api != nullptr);
  CHECK(api->version == NCCL_VERSION_CODE);
  CHECK(bool{api->mem_alloc != nullptr});
  CHECK(bool{api->mem_free != nullptr});
  CHECK(bool{api->comm_register != nullptr});
  CHECK(bool{api->comm_deregister != nullptr});
  CHECK(bool{api->comm_window_register != nullptr});
  CHECK(bool{api->comm_window_deregister != nullptr});
}
