// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/context.hpp"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace acc::model {

/// What one rank declared: descriptions by name, in the order of declaration. Of a model, the
/// description of a parameter is its shape, "[64, 16]", and its traits if they are not the
/// defaults.
using Declaration = std::vector<std::pair<std::string, std::string>>;

/// Lists the differences of two declarations, in clauses such as "fc1.weight is [64, 16] here, [65,
/// 16] on rank 1". Empty if they are equal. there: name of the other declaration, "on rank 1".
std::vector<std::string> differences(const Declaration& here, const Declaration& other,
                                     const std::string& there);

/// Compares the declarations of all ranks: first their hashes and, if these differ, the
/// descriptions. Collective. Throws Error(disagreement), which begins with `what`, on every rank if
/// one differs from rank 0.
void check_declared_alike(const sharding::Context& context, const Declaration& own,
                          std::string_view what);

}  // namespace acc::model
