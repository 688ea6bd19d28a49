// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/checkpoint/accelerate/state_files.hpp"
#include "catalog/group_values.hpp"
#include "catalog/record_table.hpp"
#include "torch/scalar.hpp"

#include <algorithm>
#include <map>
#include <set>

namespace acc::checkpoint::accelerate {

namespace fs = std::filesystem;

namespace {

using pickle::Node;
using torch::TorchFile;

// An optimizer's state dict always has these two keys.
bool is_optimizer(const Node& node) {
  return node.is_dict() && node.find("state") && node.find("param_groups");
}

/// Returns the value below the single key that merged and wrapped files have over everything.
Node unwrapped(const Node& root) {
  if (!root.is_dict()) {
    root.fail("a dict of tensors, or an optimizer's state");
  }
  const auto entries = root.entries();
  return entries.size() == 1 && entries[0].second.is_dict() ? entries[0].second : root;
}

class Reader {
 public:
  Reader(const fs::path& path, Catalog& catalog)
      : file_(path), catalog_(catalog), records_(catalog), index_(catalog.file(path)) {}

  [[nodiscard]] Node root() const {
    return unwrapped(Node(file_.root(), file_.file().path().string()));
  }
  void read_weights(const Node& root);
  void read_optimizer(const Node& root, TrainingState& training,
                      const std::vector<std::string>& parameters);

 private:
  void add(const Node& node, const std::string& name, const std::string& kind) {
    catalog_.tensors.push_back(
        records_.tensor(index_, file_.tensor(node.value()), name, kind, node.key()));
  }
  void read_group(const Node& node, std::vector<std::string>& ids, TrainingState& training);
  void name_by_order(const Node& groups, const std::vector<std::string>& ids,
                     const std::vector<std::string>& parameters, TrainingState& training);
  void read_state(const Node& node, const std::string& name, TrainingState& training);

  TorchFile file_;
  Catalog& catalog_;
  RecordTable records_;
  std::uint32_t index_;
  std::map<std::string, std::string> names_;  ///< of numbered parameters
  std::set<std::string> by_order_;            ///< names that were derived from the order alone
};

// Adds every tensor of the dict as a parameter. "_extra_state" is an arbitrary object that modules
// may add.
void Reader::read_weights(const Node& root) {
  for (const auto& [name, node] : root.entries()) {
    if (name.ends_with("flat_param")) {
      throw Error(Errc::config, node.where() +
                                    " is a part of a flat parameter (LOCAL_STATE_DICT); one "
                                    "rank's file alone does not hold the weights");
    }
    if (TorchFile::is_tensor(node.value())) {
      add(node, name, "param");
    } else if (!node.is_none() && !name.ends_with("_extra_state")) {
      node.fail("a tensor");
    }
  }
}

// Reads a parameter group, and remembers the names or numbers of its parameters. A group of plain
// torch has numbers; newer versions add param_names.
void Reader::read_group(const Node& node, std::vector<std::string>& ids, TrainingState& training) {
  StoredGroup group;
  for (const auto& [key, value] : node.entries()) {
    if (TorchFile::is_tensor(value.value())) {
      group.hyper_parameters[key] = torch::scalar(file_, value);
    } else {
      read_group_key(key, value, group);
    }
  }
  std::vector<std::string> numbers;
  for (const Node& parameter : node.at("params").items()) {
    if (parameter.value().is(pickle::Value::Kind::integer)) {
      numbers.push_back(std::to_string(parameter.integer()));
    }
  }
  if (const auto names = node.find("param_names"); names && !numbers.empty()) {
    const std::vector<Node> items = names->items();
    if (items.size() != numbers.size()) {
      names->fail(std::to_string(numbers.size()) + " names, one per parameter");
    }
    for (std::size_t i = 0; i < items.size(); ++i) {
      names_[numbers[i]] = items[i].text();
      group.parameters.push_back(items[i].text());
    }
  }
  ids.insert(ids.end(), numbers.begin(), numbers.end());
  training.groups.push_back(std::move(group));
}

// Names numbered parameters by the order of the weights. This is only safe with one group, and
// every moment's shape is compared with its weight's later.
void Reader::name_by_order(const Node& groups, const std::vector<std::string>& ids,
                           const std::vector<std::string>& parameters, TrainingState& training) {
  const std::string fault =
      groups.where() + ": the parameters have numbers and no names (param_names), and ";
  if (training.groups.size() != 1) {
    throw Error(Errc::config, fault + "are in " + std::to_string(training.groups.size()) +
                                  " groups, so that their order is not that of the weights");
  }
  if (parameters.size() != ids.size()) {
    throw Error(Errc::config, fault + "there are " + std::to_string(ids.size()) + " of them and " +
                                  std::to_string(parameters.size()) + " weights to name them by");
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    names_[ids[i]] = parameters[i];
    by_order_.insert(parameters[i]);
  }
  training.groups[0].parameters = parameters;
}

// Adds the moments of one parameter. The largest step counts, because a parameter without a
// gradient in some steps was updated less often.
void Reader::read_state(const Node& node, const std::string& name, TrainingState& training) {
  for (const auto& [kind, value] : node.entries()) {
    const bool is_tensor = TorchFile::is_tensor(value.value());
    if (kind == "step") {
      training.step = std::max(training.step.value_or(0), torch::count(file_, value));
    }
    if (!is_tensor) {
      if (!value.is_none() && !value.is_number()) {
        value.fail("a tensor or a number");
      }
      continue;
    }
    add(value, name, kind);
    const StoredTensor& moment = catalog_.tensors.back();
    const StoredTensor* const weight =
        by_order_.contains(name) ? catalog_.find(name, "param") : nullptr;
    if (kind != "step" && by_order_.contains(name) &&
        (weight == nullptr || weight->shape != moment.shape)) {
      throw Error(Errc::config, value.where() + " is of shape " + to_string(moment.shape) +
                                    ", and by its order belongs to " + name + ", " +
                                    (weight == nullptr ? "which has no weights here"
                                                       : "of shape " + to_string(weight->shape)) +
                                    ": the file names no parameters");
    }
  }
}

/// Derives the optimizer from its kinds of state. AdamW is told from Adam by a key of its groups.
std::string optimizer_of(const std::set<std::string>& kinds, const TrainingState& training) {
  if (kinds.contains("momentum_buffer")) {
    return "sgd";
  }
  if (!kinds.contains("exp_avg") || !kinds.contains("exp_avg_sq")) {
    return "";
  }
  const bool couples = std::ranges::any_of(training.groups, [](const StoredGroup& group) {
    const auto key = group.hyper_parameters.find("decoupled_weight_decay");
    return key != group.hyper_parameters.end() && key->second == 0.0;
  });
  return couples ? "" : "adamw";
}

// Groups come first, because they give the names by which states are found.
void Reader::read_optimizer(const Node& root, TrainingState& training,
                            const std::vector<std::string>& parameters) {
  const Node groups = root.at("param_groups");
  std::vector<std::string> ids;
  for (const Node& group : groups.items()) {
    read_group(group, ids, training);
  }
  if (!ids.empty() && names_.empty()) {
    catalog_.index();
    name_by_order(groups, ids, parameters, training);
  }
  const std::size_t first = catalog_.tensors.size();
  for (const auto& [key, node] : root.at("state").entries()) {
    const auto name = names_.find(key);
    if (!ids.empty() && name == names_.end()) {
      throw Error(Errc::config, node.where() + " belongs to a parameter that is in no group");
    }
    read_state(node, name == names_.end() ? key : name->second, training);
  }
  std::set<std::string> kinds;
  for (std::size_t i = first; i < catalog_.tensors.size(); ++i) {
    kinds.insert(catalog_.tensors[i].kind);
  }
  training.optimizer = optimizer_of(kinds, training);
}

}  // namespace

void read_torch_file(const fs::path& path, Catalog& catalog, TrainingState& training,
                     Provenance& provenance, const std::vector<std::string>& parameters) {
  Reader reader(path, catalog);
  const Node root = reader.root();
  if (is_optimizer(root)) {
    reader.read_optimizer(root, training, parameters);
  } else {
    reader.read_weights(root);
  }
  catalog.index();
  if (provenance.format.empty()) {
    provenance.format = "torch.save";
  }
}

}  // namespace acc::checkpoint::accelerate
