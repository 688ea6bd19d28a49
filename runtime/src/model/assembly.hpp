#pragma once

#include "model/module_tree.hpp"

#include <string>
#include <vector>

namespace acc::model {

/// What is sharded by itself: a wrapped module with all that no wrapped module below it takes.
struct UnitPlan {
  std::string name;
  bool is_root = false;
  std::vector<int> parameters;  ///< by `ModuleTree::parameters`
};

/// Who owns what, of a tree and the modules that are wrapped.
struct Assembly {
  std::vector<UnitPlan> units;  ///< the root first, then as declared
  struct Place {
    int unit = 0;   ///< of `units`
    int index = 0;  ///< in its parameters
  };
  std::vector<Place> places;  ///< of each parameter
  /// Of each declared unit, which `units` its scopes open: the one that it belongs to, then those
  /// of its own parameters that are wrapped deeper.
  std::vector<std::vector<int>> owners;
};

Assembly assemble(const ModuleTree& tree, const std::vector<int>& wrapped);

}  // namespace acc::model
