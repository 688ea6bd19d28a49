// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/catalog/parameter_names.hpp"

#include "acc/base/error.hpp"
#include "acc/checkpoint/catalog/catalog.hpp"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

namespace acc::checkpoint {

namespace {

using Names = std::map<std::string, std::string>;  ///< number -> name

/// Shape and dtype of a weight, or of the state of a parameter.
struct Form {
  std::string name;  ///< the name of the weight, or the number
  Dtype dtype = Dtype::f32;
};
using Forms = std::map<Shape, std::vector<Form>>;

/// Marks the states of numbered parameters. Returns false if there are none.
bool mark_numbered(Catalog& catalog, const TrainingState& training) {
  std::set<std::string> numbers;
  for (const StoredGroup& group : training.groups) {
    numbers.insert(group.numbers.begin(), group.numbers.end());
  }
  bool found = false;
  for (StoredTensor& tensor : catalog.tensors) {
    if (!tensor.is_weight() && tensor.number_only.empty() && numbers.contains(tensor.name)) {
      tensor.number_only = std::exchange(tensor.name, "(parameter " + tensor.name + ")");
      found = true;
    }
  }
  return found;
}

/// Removes the names of modules that wrap others, such as DistributedDataParallel.
std::string unwrapped(const std::string& name) {
  constexpr std::string_view kWrappers[] = {"module.", "_orig_mod.", "_fsdp_wrapped_module.",
                                            "_checkpoint_wrapped_module."};
  std::string left = name;
  for (std::size_t at = 0; at != left.npos && at < left.size();) {
    const auto wrapper = std::ranges::find_if(
        kWrappers, [&](std::string_view each) { return left.compare(at, each.size(), each) == 0; });
    if (wrapper != std::end(kWrappers)) {
      left.erase(at, wrapper->size());
    } else {
      at = left.find('.', at);
      at += at == left.npos ? 0 : 1;
    }
  }
  return left;
}

/// Returns the names in param_names; nothing if a group has none. The optimizer may have been made
/// from a wrapped module, whose weights were saved without the wrapper.
std::optional<Names> names_in(const Catalog& catalog, const TrainingState& training) {
  std::set<std::string> weights;
  for (const StoredTensor& tensor : catalog.tensors) {
    if (tensor.kind == "param") {
      weights.insert(tensor.name);
    }
  }
  Names names;
  for (std::size_t g = 0; g < training.groups.size(); ++g) {
    const StoredGroup& group = training.groups[g];
    if (group.numbers.empty()) {
      continue;
    }
    if (group.param_names.empty()) {
      return std::nullopt;
    }
    if (group.param_names.size() != group.numbers.size()) {
      throw Error(Errc::config, "param_groups." + std::to_string(g) + " has " +
                                    std::to_string(group.param_names.size()) +
                                    " names in param_names, expected one for each of its " +
                                    std::to_string(group.numbers.size()) + " params");
    }
    for (std::size_t i = 0; i < group.numbers.size(); ++i) {
      const std::string& name = group.param_names[i];
      const std::string inner = weights.contains(name) ? name : unwrapped(name);
      names[group.numbers[i]] = weights.contains(inner) ? inner : name;
    }
  }
  return names;
}

/// Returns the weights that may have been trained, by shape. A tied one counts once.
Forms weights_by_shape(const Catalog& catalog, const TrainingState& training) {
  SharedBytes shared;
  Forms forms;
  for (const StoredTensor& tensor : catalog.tensors) {
    if (tensor.kind == "param" && is_trainable(tensor.dtype) &&
        !training.buffers.contains(tensor.name) && shared.other(tensor) == nullptr) {
      forms[tensor.shape].push_back({tensor.name, tensor.dtype});
    }
  }
  return forms;
}

/// Returns the numbers by the shape of their states, with the dtype of one of them.
Forms states_by_shape(const Catalog& catalog) {
  std::map<std::string, Dtype> dtypes;
  for (const StoredTensor& tensor : catalog.tensors) {
    if (!tensor.number_only.empty() && tensor.kind != "step") {
      dtypes.emplace(tensor.number_only, tensor.dtype);
    }
  }
  Forms forms;
  for (const auto& [number, shape] : shapes_by_number(catalog)) {
    forms[shape].push_back({number, dtypes.at(number)});
  }
  return forms;
}

/// Sorts by dtype. Returns false if two have the same one.
bool sort_by_distinct_dtypes(std::vector<Form>& forms) {
  std::ranges::sort(forms, {}, &Form::dtype);
  return std::ranges::adjacent_find(forms, {}, &Form::dtype) == forms.end();
}

/// Pairs the states and weights of one shape if only one pairing is possible: there is one of each,
/// or each weight has a state of its own dtype, and no two have the same one.
bool pair_up(std::vector<Form> states, std::vector<Form> weights, Names& names) {
  const bool one = states.size() == 1 && weights.size() == 1;
  if (!one && (!sort_by_distinct_dtypes(states) || !sort_by_distinct_dtypes(weights) ||
               !std::ranges::equal(states, weights, {}, &Form::dtype, &Form::dtype))) {
    return false;
  }
  for (std::size_t i = 0; i < states.size(); ++i) {
    names[states[i].name] = weights[i].name;
  }
  return true;
}

/// Derives all names from the shapes. Returns the reason why that is not possible, or "".
std::string names_by_shape(const Catalog& catalog, const TrainingState& training, Names& names) {
  const Forms weights = weights_by_shape(catalog, training);
  for (const auto& [shape, states] : states_by_shape(catalog)) {
    const auto found = weights.find(shape);
    const std::size_t count = found == weights.end() ? 0 : found->second.size();
    if (count == 0 || !pair_up(states, found->second, names)) {
      return std::to_string(states.size()) +
             (states.size() == 1 ? " of its states is" : " of its states are") + " of shape " +
             to_string(shape) + ", and so " +
             (count == 1 ? "is 1 weight" : "are " + std::to_string(count) + " weights");
    }
  }
  for (const StoredTensor& tensor : catalog.tensors) {
    if (!tensor.number_only.empty() && !names.contains(tensor.number_only)) {
      return "the state of number " + tensor.number_only + " is not of the shape of a weight";
    }
  }
  return "";
}

}  // namespace

std::map<std::string, Shape> shapes_by_number(const Catalog& catalog) {
  std::map<std::string, Shape> shapes;
  std::set<std::string> differ;
  for (const StoredTensor& tensor : catalog.tensors) {
    if (tensor.number_only.empty() || tensor.kind == "step") {
      continue;
    }
    const auto [found, is_new] = shapes.emplace(tensor.number_only, tensor.shape);
    if (!is_new && found->second != tensor.shape) {
      differ.insert(tensor.number_only);
    }
  }
  std::erase_if(shapes, [&](const auto& each) { return differ.contains(each.first); });
  return shapes;
}

void name_parameters(Catalog& catalog, TrainingState& training,
                     const std::map<std::string, std::string>& names) {
  for (StoredTensor& tensor : catalog.tensors) {
    if (const auto found = names.find(tensor.number_only); found != names.end()) {
      tensor.name = found->second;
      tensor.number_only.clear();
    }
  }
  for (StoredGroup& group : training.groups) {
    for (const std::string& number : group.numbers) {
      if (const auto found = names.find(number); found != names.end()) {
        group.parameters.push_back(found->second);
      }
    }
  }
  training.names_unknown.clear();
  catalog.index();
}

// Without states there is nothing to name, but torch's names are still those of the groups.
void name_parameters(Catalog& catalog, TrainingState& training) {
  const bool has_states = mark_numbered(catalog, training);
  if (const auto names = names_in(catalog, training)) {
    return name_parameters(catalog, training, *names);
  }
  Names names;
  if (const std::string reason = names_by_shape(catalog, training, names); reason.empty()) {
    return name_parameters(catalog, training, names);
  } else if (has_states) {
    training.names_unknown =
        "the optimizer's state has numbers and no names (param_names), and " + reason;
  }
  catalog.index();
}

}  // namespace acc::checkpoint
