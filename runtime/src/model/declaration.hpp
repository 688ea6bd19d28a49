#pragma once

#include "sharding/engine.hpp"

#include <string>
#include <utility>
#include <vector>

namespace acc::model {

/// A model as one rank declared it: facts by name, in the order of declaration. A parameter's fact
/// is its full name and "[64, 16]", with its traits where they are not the usual ones.
using Declaration = std::vector<std::pair<std::string, std::string>>;

/// Lists how two declarations differ, in sentences such as "fc1.weight is [64, 16] here, [65, 16]
/// on rank 1". Empty where they are equal. there: "on rank 1".
std::vector<std::string> differences(const Declaration& here, const Declaration& other,
                                     const std::string& there);

/// Compares the declarations of all ranks: their hashes, and where these differ the facts.
/// Collective. Throws Error(config) on every rank where one differs from rank 0.
void check_declared_alike(const sharding::Engine& engine, const Declaration& own);

}  // namespace acc::model
