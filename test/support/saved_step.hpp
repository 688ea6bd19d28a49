// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/runtime.hpp"

#include <cstdint>
#include <variant>

namespace acc::test {

/// The saved state of a program that counts its steps, and the step in a loaded state.
inline SavedState at_step(std::int64_t step) {
  return {.program = {{"step", step}}, .of_rank = {}};
}
inline std::int64_t step_of(const SavedState& state) {
  return std::get<std::int64_t>(state.program.at("step"));
}

}  // namespace acc::test
