#pragma once

#include "acc/runtime.hpp"

#include <cstdint>
#include <variant>

namespace acc::test {

/// What a program that counts its steps saves, and finds again.
inline SavedState at_step(std::int64_t step) {
  return {.program = {{"step", step}}, .of_rank = {}};
}
inline std::int64_t step_of(const SavedState& state) {
  return std::get<std::int64_t>(state.program.at("step"));
}

}  // namespace acc::test
