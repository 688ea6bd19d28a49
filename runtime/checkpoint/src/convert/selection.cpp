// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/base/optimizer_rules.hpp"
#include "acc/checkpoint/catalog/catalog.hpp"
#include "catalog/group_values.hpp"
#include "convert/outputs.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

namespace acc::checkpoint::conversion {

std::vector<OutputTensor> weights_of(const Stored& stored, std::optional<Dtype> dtype) {
  std::vector<OutputTensor> tensors;
  SharedBytes shared;
  std::map<std::string_view, const StoredTensor*> by_name;
  for (const StoredTensor& tensor : stored.catalog.tensors) {
    if (tensor.is_weight()) {
      const auto [same, is_new] = by_name.emplace(tensor.name, &tensor);
      if (!is_new) {
        throw Error(Errc::not_supported, stored.path.string() + ": '" + same->second->stored_name +
                                             "' and '" + tensor.stored_name + "' would both be '" +
                                             tensor.name +
                                             "' in the output; save them under other names");
      }
      const bool converts = dtype && is_real(tensor.dtype);
      const StoredTensor* const other = shared.other(tensor);
      tensors.push_back({tensor.name, &tensor, converts ? *dtype : tensor.dtype,
                         other == nullptr ? "" : other->name});
    }
  }
  return tensors;
}

namespace {

bool is_moment(const StoredTensor& tensor) {
  return !tensor.is_weight() && tensor.kind != "group";
}

}  // namespace

std::vector<OutputTensor> moments_of(const Stored& stored) {
  if (!stored.training.names_unknown.empty()) {
    throw Error(Errc::not_supported,
                stored.path.string() + ": " + stored.training.names_unknown +
                    ": which moments belong to which weight is only known to a program that loads "
                    "both. Load it there and save it again with names (in torch: an optimizer made "
                    "from model.named_parameters()), or convert the file of the weights alone");
  }
  std::vector<OutputTensor> tensors;
  for (const StoredTensor& tensor : stored.catalog.tensors) {
    if (is_moment(tensor)) {
      tensors.push_back({tensor.name, &tensor, tensor.dtype});
    }
  }
  return tensors;
}

bool has_optimizer(const Stored& stored) {
  return std::ranges::any_of(stored.catalog.tensors, is_moment);
}

// A checkpoint that names its optimizer is trusted. Otherwise states and groups decide.
std::string known_optimizer(const Stored& stored) {
  if (!stored.training.optimizer.empty()) {
    return stored.training.optimizer;
  }
  std::set<std::string> kinds;
  for (const StoredTensor& tensor : stored.catalog.tensors) {
    kinds.insert(tensor.kind);
  }
  return class_of(kinds, stored.training.groups);
}

std::string optimizer_of(const Stored& stored) {
  std::string known = known_optimizer(stored);
  if (known.empty()) {
    throw Error(Errc::not_supported,
                stored.path.string() + ": an optimizer's state of kinds other than those of " +
                    all_optimizer_rules(&OptimizerRule::title) + " cannot be written");
  }
  return known;
}

}  // namespace acc::checkpoint::conversion
