// SPDX-License-Identifier: Apache-2.0
#include "model/module_tree.hpp"

#include "acc/base/error.hpp"

#include <fmt/format.h>

#include <map>
#include <regex>
#include <utility>

namespace acc::model {
namespace {

/// Returns "net.h.0" for "net.h.0.weight"; empty for a name without a dot.
std::string_view parent_of(std::string_view name) {
  const auto dot = name.rfind('.');
  return dot == std::string_view::npos ? std::string_view{} : name.substr(0, dot);
}

/// True if `name` is the module `prefix` or is inside it.
bool lies_in(std::string_view name, std::string_view prefix) {
  return prefix.empty() || name == prefix ||
         (name.starts_with(prefix) && name[prefix.size()] == '.');
}

std::regex compile(const std::string& pattern) {
  try {
    return std::regex(pattern, std::regex::ECMAScript | std::regex::optimize);
  } catch (const std::regex_error& error) {
    throw Error(Errc::config, fmt::format("fsdp_ignored_modules: '{}' is not a valid regular "
                                          "expression (ECMAScript): {}",
                                          pattern, error.what()));
  }
}

/// Builds the tree in three passes: declared units become modules; parameters add the modules of
/// their dotted names; `link` connects each module with its parent.
class TreeBuilder {
 public:
  TreeBuilder(const std::vector<DeclaredUnit>& units, const IgnoredModules& ignored)
      : units_(units), ignored_(ignored) {}

  ModuleTree build() {
    add_units();
    for (std::size_t u = 0; u < units_.size(); ++u) {
      for (const DeclaredParameter& each : units_[u].parameters) {
        add_parameter(static_cast<int>(u), each);
      }
    }
    link();
    return std::move(tree_);
  }

 private:
  void add_units() {
    tree_.modules.emplace_back();
    for (std::size_t u = 0; u < units_.size(); ++u) {
      const int number = units_[u].is_root ? 0 : module_named(units_[u].name);
      Module& module = tree_.modules[static_cast<std::size_t>(number)];
      module.name = units_[u].name;
      module.class_name = units_[u].class_name;
      module.unit = static_cast<int>(u);
      by_name_[module.name] = number;
    }
  }

  int module_named(std::string_view name) {
    const auto known = by_name_.find(name);
    if (known != by_name_.end()) {
      return known->second;
    }
    const int number = static_cast<int>(tree_.modules.size());
    tree_.modules.push_back({.name = std::string(name), .class_name = {}});
    by_name_.emplace(name, number);
    return number;
  }

  /// The first name places a parameter in the declaring unit. A tied name places it in the deepest
  /// unit that contains the name, which may be another one.
  void add_parameter(int unit, const DeclaredParameter& declared) {
    const int number = static_cast<int>(tree_.parameters.size());
    const std::string& unit_name = units_[static_cast<std::size_t>(unit)].name;
    ModuleParameter parameter{.numel = declared.numel, .unit = unit};
    for (std::size_t i = 0; i < declared.names.size(); ++i) {
      const std::string_view name = declared.names[i];
      const int module = module_of(name, i == 0 ? unit_name : longest_unit(name));
      if (i == 0) {
        parameter.module = module;
      }
      parameter.ignored = parameter.ignored || ignored_.contains_holder_of(name);
      tree_.modules[static_cast<std::size_t>(module)].parameters.push_back(number);
    }
    tree_.parameters.push_back(parameter);
  }

  /// Returns the module that contains `name`, a name inside the unit called `unit`, and adds the
  /// modules between the two.
  int module_of(std::string_view name, std::string_view unit) {
    const std::string_view path = parent_of(name);
    if (path == unit || path.empty() || !lies_in(path, unit)) {
      const auto known = by_name_.find(unit);
      return known == by_name_.end() ? 0 : known->second;
    }
    module_of(path, unit);
    return module_named(path);
  }

  /// Returns the longest unit name that contains `name`; empty for the root.
  [[nodiscard]] std::string_view longest_unit(std::string_view name) const {
    std::string_view longest;
    for (const DeclaredUnit& each : units_) {
      if (!each.is_root && lies_in(name, each.name) && each.name.size() > longest.size()) {
        longest = each.name;
      }
    }
    return longest;
  }

  void link() {
    for (std::size_t i = 0; i < tree_.modules.size(); ++i) {
      Module& module = tree_.modules[i];
      module.ignored = ignored_.contains(module.name);
      if (i == 0) {
        continue;
      }
      module.parent = 0;
      for (auto name = parent_of(module.name); !name.empty(); name = parent_of(name)) {
        if (const auto known = by_name_.find(name); known != by_name_.end()) {
          module.parent = known->second;
          break;
        }
      }
      tree_.modules[static_cast<std::size_t>(module.parent)].children.push_back(
          static_cast<int>(i));
    }
  }

  const std::vector<DeclaredUnit>& units_;
  const IgnoredModules& ignored_;
  ModuleTree tree_;
  std::map<std::string, int, std::less<>> by_name_;
};

}  // namespace

IgnoredModules::IgnoredModules(const std::string& pattern) {
  if (!pattern.empty()) {
    matches_ = [expression = compile(pattern)](std::string_view name) {
      return std::regex_match(name.begin(), name.end(), expression);
    };
  }
}

bool IgnoredModules::contains(std::string_view module) const {
  if (!matches_) {
    return false;
  }
  for (auto name = module; !name.empty(); name = parent_of(name)) {
    if (matches_(name)) {
      return true;
    }
  }
  return false;
}

bool IgnoredModules::contains_holder_of(std::string_view full_name) const {
  return contains(parent_of(full_name));
}

ModuleTree build_tree(const std::vector<DeclaredUnit>& units, const IgnoredModules& ignored) {
  return TreeBuilder(units, ignored).build();
}

int nearest_wrapped(const ModuleTree& tree, const std::vector<bool>& wrapped, int module) {
  while (module > 0 && !wrapped[static_cast<std::size_t>(module)]) {
    module = tree.modules[static_cast<std::size_t>(module)].parent;
  }
  return module;
}

}  // namespace acc::model
