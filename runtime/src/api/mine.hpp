// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "api/runtime_state.hpp"
#include "model/model_state.hpp"
#include "optim/optimizer_state.hpp"

#include <memory>

namespace acc {

/// Returns the state of a handle. Throws Error(invalid_argument) in a child made by fork, which has
/// only a copy of it.
inline detail::RuntimeState& mine(const std::shared_ptr<detail::RuntimeState>& state) {
  state->groups.check_process();
  return *state;
}
inline detail::ModelState& mine(const std::shared_ptr<detail::ModelState>& state) {
  state->context().groups.check_process();
  return *state;
}
inline detail::OptimizerState& mine(const std::shared_ptr<detail::OptimizerState>& state) {
  state->groups().check_process();
  return *state;
}
inline detail::UnitState& mine(detail::UnitState* state) {
  state->model->context().groups.check_process();
  return *state;
}

}  // namespace acc
