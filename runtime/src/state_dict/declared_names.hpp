// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/open/open.hpp"
#include "optim/optimizer_state.hpp"

namespace acc::checkpoint {

/// Names the states of a checkpoint's optimizer that have only numbers, as torch's load_state_dict
/// does: the numbers count the parameters of the groups in the order in which the program declares
/// them, with or without frozen ones. Several groups are matched by the shapes of their states,
/// then by weight decay and learning rate. Throws Error(config) if groups, numbers of parameters or
/// shapes do not fit the program, or if two groups could be exchanged.
void name_by_declaration(Stored& stored, const detail::OptimizerState& optimizer);

}  // namespace acc::checkpoint
