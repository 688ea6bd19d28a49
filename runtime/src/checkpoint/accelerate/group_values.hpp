#pragma once

#include "checkpoint/accelerate/state_files.hpp"
#include "checkpoint/pickle/node.hpp"
#include "checkpoint/pickle/writer.hpp"

#include <functional>
#include <string>

namespace acc::checkpoint::accelerate {

using PushValue = std::function<void(pickle::Writer& writer)>;

/// The keys of a parameter group, in torch's order, each with what pushes its value. Throws
/// Error(config) for an optimizer that torch has not under that name.
void for_each_group_value(
    const std::string& optimizer, const StoredGroup& group,
    const std::function<void(const std::string& key, const PushValue& push)>& visit);

/// A key of a parameter group, from a pickled dict or from a value of its own. Throws Error(config)
/// that names the key.
void read_group_key(const std::string& key, const pickle::Node& node, StoredGroup& group);

}  // namespace acc::checkpoint::accelerate
