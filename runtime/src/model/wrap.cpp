// SPDX-License-Identifier: Apache-2.0
#include "model/wrap.hpp"

#include "acc/base/error.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>

namespace acc::model {
namespace {

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

const Module& at(const ModuleTree& tree, int module) {
  return tree.modules[static_cast<std::size_t>(module)];
}

/// Throws if a wanted class does not exist. source: the source of the list, or empty.
void check_classes(const std::vector<std::string>& wanted, const ModuleTree& tree,
                   const std::string& source) {
  std::set<std::string> present;
  for (const Module& each : tree.modules) {
    if (each.unit >= 0) {
      present.insert(each.class_name);
    }
  }
  std::vector<std::string> missing;
  std::copy_if(wanted.begin(), wanted.end(), std::back_inserter(missing),
               [&](const std::string& name) { return !present.contains(name); });
  if (!missing.empty()) {
    throw Error(
        Errc::config,
        fmt::format("{}fsdp_transformer_layer_cls_to_wrap names {}, but no unit of this "
                    "model has such a class; the model has {}. Name one of these, or "
                    "remove the key: then each unit that the program declares is sharded "
                    "by itself",
                    source.empty() ? "" : source + ": ", fmt::join(missing, ", "),
                    present.empty() ? "none" : fmt::format("{}", fmt::join(present, ", "))));
  }
}

/// Adds the modules below `module` for which `chosen` is true, children first.
void collect(const ModuleTree& tree, int module, const std::function<bool(const Module&)>& chosen,
             std::vector<int>& wrapped) {
  for (const int child : at(tree, module).children) {
    collect(tree, child, chosen, wrapped);
    if (chosen(at(tree, child))) {
      wrapped.push_back(child);
    }
  }
}

/// size_based_auto_wrap_policy under _recursive_wrap, of torch/distributed/fsdp/wrap.py: post-order
/// recursion. A module is wrapped if at least `min_numel` of its elements are not wrapped below it.
class SizeBased {
 public:
  SizeBased(const ModuleTree& tree, std::int64_t min_numel) : tree_(tree), min_numel_(min_numel) {}

  std::vector<int> run() {
    visit(0);
    return std::move(wrapped_);
  }

 private:
  /// Wraps modules in and below `module`. Returns the number of elements that are wrapped.
  std::int64_t visit(int module) {
    const Module& here = at(tree_, module);
    const std::int64_t numel = numel_below(module);
    if (numel < min_numel_ || contains(kLeaves, here.class_name)) {
      return 0;
    }
    std::int64_t wrapped = 0;
    for (const int child : here.children) {
      wrapped += at(tree_, child).ignored ? 0 : visit(child);
    }
    const bool large = numel - wrapped >= min_numel_;
    if (!large || contains(kContainers, here.class_name) || module == 0) {
      return wrapped;
    }
    wrapped_.push_back(module);
    return numel;
  }

  /// Tied parameters count once.
  [[nodiscard]] std::int64_t numel_below(int module) const {
    std::set<int> parameters;
    gather(module, parameters);
    std::int64_t numel = 0;
    for (const int each : parameters) {
      const ModuleParameter& parameter = tree_.parameters[static_cast<std::size_t>(each)];
      numel += parameter.ignored ? 0 : parameter.numel;
    }
    return numel;
  }

  void gather(int module, std::set<int>& parameters) const {
    const Module& here = at(tree_, module);
    parameters.insert(here.parameters.begin(), here.parameters.end());
    for (const int child : here.children) {
      gather(child, parameters);
    }
  }

  // torch's defaults force_leaf_modules and exclude_wrap_modules.
  inline static const std::vector<std::string> kLeaves = {"MultiheadAttention"};
  inline static const std::vector<std::string> kContainers = {"ModuleList", "ModuleDict"};

  const ModuleTree& tree_;
  std::int64_t min_numel_;
  std::vector<int> wrapped_;
};

}  // namespace

std::vector<int> declared_units(const ModuleTree& tree) {
  std::vector<int> wrapped;
  collect(
      tree, 0, [](const Module& each) { return each.unit >= 0; }, wrapped);
  return wrapped;
}

std::vector<int> wrap(const settings::RuntimeSettings& settings, const ModuleTree& tree) {
  const auto found = settings.sources.find("fsdp_transformer_layer_cls_to_wrap");
  return wrap(settings.sharding, tree, found == settings.sources.end() ? "" : found->second);
}

std::vector<int> wrap(const settings::ShardingSettings& settings, const ModuleTree& tree,
                      const std::string& classes_source) {
  const auto& classes = settings.transformer_layer_classes;
  switch (settings.wrap_policy) {
    case settings::WrapPolicy::no_wrap: return {};
    case settings::WrapPolicy::unset: return declared_units(tree);
    case settings::WrapPolicy::size_based: return SizeBased(tree, settings.min_num_params).run();
    case settings::WrapPolicy::transformer_based: break;
  }
  check_classes(classes, tree, classes_source);
  std::vector<int> wrapped;
  collect(
      tree, 0,
      [&](const Module& each) {
        return each.unit >= 0 && !each.ignored &&
               (classes.empty() || contains(classes, each.class_name));
      },
      wrapped);
  return wrapped;
}

}  // namespace acc::model
