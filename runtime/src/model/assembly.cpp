// SPDX-License-Identifier: Apache-2.0
#include "model/assembly.hpp"

#include <algorithm>
#include <map>

namespace acc::model {
namespace {

void add_once(std::vector<int>& numbers, int number) {
  if (std::find(numbers.begin(), numbers.end(), number) == numbers.end()) {
    numbers.push_back(number);
  }
}

}  // namespace

Assembly assemble(const ModuleTree& tree, const std::vector<int>& wrapped) {
  std::vector<bool> is_wrapped(tree.modules.size(), false);
  for (const int module : wrapped) {
    is_wrapped[static_cast<std::size_t>(module)] = true;
  }
  // Keys are module numbers, which begin with the root and follow the declaration, so the maps'
  // order is that of `Assembly::units`. A declared unit without parameters also makes its owner a
  // unit.
  std::map<int, std::vector<int>> modules;  // owner -> its parameters
  std::map<int, std::vector<int>> opened;   // declared unit -> owners that its scopes open
  for (std::size_t m = 0; m < tree.modules.size(); ++m) {
    if (tree.modules[m].unit >= 0) {
      const int owner = nearest_wrapped(tree, is_wrapped, static_cast<int>(m));
      modules[owner];
      opened[tree.modules[m].unit] = {owner};
    }
  }
  for (std::size_t p = 0; p < tree.parameters.size(); ++p) {
    const int owner = nearest_wrapped(tree, is_wrapped, tree.parameters[p].module);
    modules[owner].push_back(static_cast<int>(p));
    add_once(opened[tree.parameters[p].unit], owner);
  }

  Assembly result;
  result.places.resize(tree.parameters.size());
  std::map<int, int> number_of;
  for (auto& [module, parameters] : modules) {
    const int number = static_cast<int>(result.units.size());
    number_of[module] = number;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      result.places[static_cast<std::size_t>(parameters[i])] = {number, static_cast<int>(i)};
    }
    const std::string& name = tree.modules[static_cast<std::size_t>(module)].name;
    result.units.push_back({.name = name.empty() ? "root" : name,
                            .is_root = module == 0,
                            .parameters = std::move(parameters)});
  }
  for (const auto& [unit, owners] : opened) {
    std::vector<int>& numbers = result.owners.emplace_back();
    std::transform(owners.begin(), owners.end(), std::back_inserter(numbers),
                   [&](int module) { return number_of.at(module); });
  }
  return result;
}

}  // namespace acc::model
