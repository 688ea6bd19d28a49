#include "api/deterministic.hpp"

#include <cstdlib>

namespace acc::detail {

void pin_choices() {
  struct Choice {
    const char* variable;
    const char* value;
  };
  // NCCL chooses by its measurements of links. cuBLAS chooses internal workspaces by the streams
  // that are active at the same time (cuBLAS documentation, "Results Reproducibility").
  constexpr Choice kChoices[] = {
      {"NCCL_ALGO", "Ring"},       {"NCCL_PROTO", "Simple"},
      {"NCCL_MIN_NCHANNELS", "4"}, {"NCCL_MAX_NCHANNELS", "4"},
      {"NCCL_NVLS_ENABLE", "0"},   {"CUBLAS_WORKSPACE_CONFIG", ":4096:8"}};
  for (const Choice& choice : kChoices) {
    ::setenv(choice.variable, choice.value, /*overwrite=*/0);
  }
}

}  // namespace acc::detail
