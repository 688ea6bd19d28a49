// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/module_tree.hpp"

#include <string>
#include <vector>

namespace acc::model {

/// Plan of one sharded unit: a wrapped module with all its parameters that no wrapped module below
/// it takes.
struct UnitPlan {
  std::string name;
  bool is_root = false;
  std::vector<int> parameters;  ///< indices into `ModuleTree::parameters`
};

/// Assignment of parameters to sharded units, and of the program's units to the sharded units that
/// their scopes open.
struct Assembly {
  std::vector<UnitPlan> units;  ///< the root first, then in the order of declaration
  struct Place {
    int unit = 0;   ///< index into `units`
    int index = 0;  ///< index into that unit's parameters
  };
  std::vector<Place> places;  ///< by parameter
  /// For each declared unit, the indices of the `units` that its scopes open: the one that it
  /// belongs to, then those that contain its parameters of modules wrapped deeper.
  std::vector<std::vector<int>> owners;
};

/// wrapped: modules that are sharded units (`wrap`). A pure function, so all ranks get the same
/// result.
Assembly assemble(const ModuleTree& tree, const std::vector<int>& wrapped);

}  // namespace acc::model
