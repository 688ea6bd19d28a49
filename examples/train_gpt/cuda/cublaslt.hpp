// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cublasLt.h>

#include <utility>

namespace train_gpt::cuda {

/// Functions of cuBLASLt that this program calls.
// clang-format off
#define TRAIN_GPT_CUBLASLT_FUNCTIONS(F) \
  F(Create) \
  F(Destroy) \
  F(GetStatusString) \
  F(Matmul) \
  F(MatmulAlgoGetHeuristic) \
  F(MatmulDescCreate) \
  F(MatmulDescDestroy) \
  F(MatmulDescSetAttribute) \
  F(MatrixLayoutCreate) \
  F(MatrixLayoutDestroy) \
  F(MatmulPreferenceCreate) \
  F(MatmulPreferenceDestroy) \
  F(MatmulPreferenceSetAttribute)
// clang-format on

/// libcublasLt, opened at run time, so that the program also starts on machines without it. Never
/// closed.
struct CublasLt {
#define TRAIN_GPT_DECLARE(name) decltype(&::cublasLt##name) name = nullptr;
  TRAIN_GPT_CUBLASLT_FUNCTIONS(TRAIN_GPT_DECLARE)
#undef TRAIN_GPT_DECLARE

  /// Searches the library in the places of acc::library_candidates; ACC_CUBLASLT_LIBRARY can name
  /// it. Throws Error(device) with the loader's message for each place.
  CublasLt();

  /// Throws Error(device) if a call failed. what: operation, for the message.
  void check(cublasStatus_t status, const char* what) const;
};

/// Owns a handle of cuBLASLt and destroys it.
template <class Handle>
class Owned {
 public:
  using Destroy = cublasStatus_t (*)(Handle);
  Owned() = default;
  Owned(Handle handle, Destroy destroy) : handle_(handle), destroy_(destroy) {}
  Owned(Owned&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)), destroy_(other.destroy_) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(destroy_, other.destroy_);
    return *this;
  }
  ~Owned() {
    if (handle_ != nullptr) {
      destroy_(handle_);
    }
  }
  [[nodiscard]] Handle get() const { return handle_; }

 private:
  Handle handle_ = nullptr;
  Destroy destroy_ = nullptr;
};

}  // namespace train_gpt::cuda
