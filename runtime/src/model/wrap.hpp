// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/settings/sharding_settings.hpp"
#include "model/module_tree.hpp"

#include <string>
#include <vector>

namespace acc::model {

/// Returns the declared units, children before their parents. The root is not listed.
std::vector<int> declared_units(const ModuleTree& tree);

/// Returns the modules that become sharded units: FSDP's auto_wrap_policy for the program's
/// modules. Children come before their parents. The root, which takes the rest, is not listed.
/// - unset: every declared unit.
/// - TRANSFORMER_BASED_WRAP: units of the listed classes; without a list every declared unit.
///   Throws Error(config) for a class that no unit has. The message begins with `classes_source`,
///   the source of the setting (`config.yaml:12`), and lists the classes of the model.
/// - SIZE_BASED_WRAP: torch's size_based_auto_wrap_policy.
/// - NO_WRAP: none.
std::vector<int> wrap(const settings::ShardingSettings& settings, const ModuleTree& tree,
                      const std::string& classes_source = {});
/// The same with the source that the settings contain.
std::vector<int> wrap(const settings::RuntimeSettings& settings, const ModuleTree& tree);

}  // namespace acc::model
