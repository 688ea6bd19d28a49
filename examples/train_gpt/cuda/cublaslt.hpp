#pragma once

#include <cublasLt.h>

#include <utility>

namespace train_gpt::cuda {

/// The functions of cuBLASLt that this program calls.
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

/// libcublasLt, opened at run time, so that the program starts where there is none. Never closed.
struct CublasLt {
#define TRAIN_GPT_DECLARE(name) decltype(&::cublasLt##name) name = nullptr;
  TRAIN_GPT_CUBLASLT_FUNCTIONS(TRAIN_GPT_DECLARE)
#undef TRAIN_GPT_DECLARE

  /// Looks at ACC_CUBLASLT_LIBRARY (a path; nothing else is then tried), where the loader looks, in
  /// CUDA_HOME, beside the program, and in the packages of VIRTUAL_ENV and of the PATH's python3.
  /// Throws Error(device) that says where.
  CublasLt();

  /// Throws Error(device) when a call failed.
  void check(cublasStatus_t status, const char* what) const;
};

/// A handle of cuBLASLt with the function that destroys it.
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
