// SPDX-License-Identifier: Apache-2.0
#include "acc/base/variables.hpp"

#include <cstdlib>

namespace acc {

std::optional<std::string> process_variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

bool allows_colours() {
  return !process_variable(kNoColourVariable);
}

bool has_cursor() {
  const auto terminal = process_variable(kTerminalVariable);
  return terminal && *terminal != "dumb";
}

bool shares_gpus_by_nccl() {
  return process_variable("NCCL_MULTI_RANK_GPU_ENABLE") == "1";
}

}  // namespace acc
