#pragma once

#include "acc/plugins/sharding_settings.hpp"
#include "model/module_tree.hpp"

#include <string>
#include <vector>

namespace acc::model {

/// Which modules are sharded by themselves: FSDP's auto_wrap_policy over the program's modules.
/// Children come before their parents. The root holds the rest and is not listed.
/// - unset: every declared unit.
/// - TRANSFORMER_BASED_WRAP: units of the listed classes; without a list every declared unit.
///   Throws Error(config) for a class that no unit has; the message begins with `classes_source`,
///   the place that lists the classes (`config.yaml:12`), and lists the classes that there are.
/// - SIZE_BASED_WRAP: torch's size_based_auto_wrap_policy.
/// - NO_WRAP: none.
std::vector<int> wrap(const plugins::ShardingSettings& settings, const ModuleTree& tree,
                      const std::string& classes_source = {});

}  // namespace acc::model
