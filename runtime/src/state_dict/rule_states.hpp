// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/runtime.hpp"
#include "state_dict/model_files.hpp"

#include <span>
#include <string>

/// State that update rules of the program hold themselves, among the values of each rank.
namespace acc::state_dict {

/// Adds to the values of a rank those that ranks with the same shards share: the states of rules of
/// the program and of the Python package's acc.TorchOptimizer. from: the values of such a rank.
void add_values_of_shards(const ProgramState& from, ProgramState& values);
/// Returns the program's values with what its rules hold themselves (ProgramRule::state).
SavedState with_rule_states(std::span<const Part> parts, SavedState values);
/// Gives it back to the rules, and takes it out of the values. source: for messages. Throws
/// Error(config) if it is missing.
void load_rule_states(std::span<const Part> parts, SavedState& values, const std::string& source);

}  // namespace acc::state_dict
