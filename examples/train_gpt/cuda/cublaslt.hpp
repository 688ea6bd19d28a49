#pragma once

#include <cublasLt.h>

#include <string>

namespace train_gpt::cuda {

/// The functions of cuBLASLt that this program calls.
#define TRAIN_GPT_CUBLASLT_FUNCTIONS(F)                                                       \
  F(Create)                                                                                   \
  F(Destroy)                                                                                  \
  F(GetStatusString)                                                                          \
  F(Matmul)                                                                                   \
  F(MatmulAlgoGetHeuristic)                                                                   \
  F(MatmulDescCreate)                                                                         \
  F(MatmulDescDestroy) F(MatmulDescSetAttribute) F(MatrixLayoutCreate) F(MatrixLayoutDestroy) \
      F(MatmulPreferenceCreate) F(MatmulPreferenceDestroy) F(MatmulPreferenceSetAttribute)

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

}  // namespace train_gpt::cuda
