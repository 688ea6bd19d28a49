// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/catalog/catalog.hpp"
#include "acc/checkpoint/pickle/writer.hpp"
#include "pickle/node.hpp"

#include <functional>
#include <set>
#include <string>
#include <vector>

namespace acc::checkpoint {

using PushValue = std::function<void(pickle::Writer& writer)>;

/// Visits the keys of a parameter group in torch's order, each with a function that pushes its
/// value. Throws Error(not_supported) if torch has no optimizer of that name.
void for_each_group_value(
    const std::string& optimizer, const StoredGroup& group,
    const std::function<void(const std::string& key, const PushValue& push)>& visit);

/// Derives the runtime's name of an optimizer from the kinds of its states and from its groups,
/// which may be unknown (none). Returns "" if the runtime has no such optimizer.
std::string class_of(const std::set<std::string>& kinds, const std::vector<StoredGroup>& groups);

/// True if torch and DeepSpeed save a step with the states of the optimizer.
bool counts_steps(const std::string& optimizer);

/// Reads a key of a parameter group, either from a pickled dict or from its own DCP entry. Returns
/// false if it is left out: a value that the program has added and that consists of more than None,
/// numbers, strings, lists, tuples and dicts. Throws Error(config) with the key.
[[nodiscard]] bool read_group_key(const std::string& key, const pickle::Node& node,
                                  StoredGroup& group);

}  // namespace acc::checkpoint
