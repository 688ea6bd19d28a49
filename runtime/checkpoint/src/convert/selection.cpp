// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/base/optimizer_rules.hpp"
#include "acc/checkpoint/catalog/catalog.hpp"
#include "catalog/group_values.hpp"
#include "convert/outputs.hpp"

#include <algorithm>
#include <set>

namespace acc::checkpoint::conversion {
namespace {

// Tensors of unknown meaning ("value") are treated as weights, so that they are not lost.
bool is_weight(const StoredTensor& tensor) {
  return tensor.kind == "param" || tensor.kind == "value";
}

}  // namespace

std::vector<OutputTensor> weights_of(const Stored& stored, std::optional<Dtype> dtype) {
  std::vector<OutputTensor> tensors;
  SharedBytes shared;
  for (const StoredTensor& tensor : stored.catalog.tensors) {
    if (is_weight(tensor)) {
      const bool converts = dtype && is_real(tensor.dtype);
      const StoredTensor* const other = shared.other(tensor);
      tensors.push_back({tensor.name, &tensor, converts ? *dtype : tensor.dtype,
                         other == nullptr ? "" : other->name});
    }
  }
  return tensors;
}

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
    if (!is_weight(tensor) && tensor.kind != "group") {  // a setting: training.groups has it
      tensors.push_back({tensor.name, &tensor, tensor.dtype});
    }
  }
  return tensors;
}

bool has_optimizer(const Stored& stored) {
  return std::any_of(stored.catalog.tensors.begin(), stored.catalog.tensors.end(),
                     [](const StoredTensor& tensor) { return !is_weight(tensor); });
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
