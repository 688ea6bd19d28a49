// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/accelerate/state_files.hpp"
#include "acc/checkpoint/files/errors.hpp"
#include "catalog/group_values.hpp"
#include "catalog/record_table.hpp"
#include "torch/scalar.hpp"

#include <algorithm>
#include <set>

namespace acc::checkpoint::accelerate {

namespace {

using pickle::Node;
using torch::TorchFile;

// An optimizer's state dict always has these two keys. Weights may have such names.
bool is_optimizer(const Node& node) {
  return node.is_dict() && node.find("state") && node.find("param_groups") &&
         !TorchFile::is_tensor(node.at("param_groups").value());
}

/// Returns the value below the single key that merged and wrapped files have over everything.
Node unwrapped(const Node& root) {
  if (!root.is_dict()) {
    root.refuse("a dict of tensors, or an optimizer's state");
  }
  const auto entries = root.entries();
  return entries.size() == 1 && entries[0].second.is_dict() ? entries[0].second : root;
}

class Reader {
 public:
  Reader(const InputPath& path, Catalog& catalog)
      : file_(path), catalog_(catalog), records_(catalog), index_(catalog.file(path)) {}

  [[nodiscard]] Node root() const {
    return unwrapped(Node(file_.root(), file_.file().path().string()));
  }

  // Adds every tensor of the dict as a parameter. "_extra_state" is an arbitrary object that
  // modules may add.
  void read_weights(const Node& root, TrainingState& training) {
    for (const auto& [name, node] : root.entries()) {
      if (name.ends_with("flat_param")) {
        throw Unreadable(node.where() +
                         " is a part of a flat parameter (LOCAL_STATE_DICT); one rank's file alone "
                         "does not hold the weights");
      }
      if (TorchFile::is_tensor(node.value())) {
        add(node, name, "param");
      } else if (node.is_none() || name.ends_with("_extra_state")) {
        training.unread.push_back(name);
      } else {
        node.refuse("a tensor");
      }
    }
  }

  // States under numbers keep them here; name_parameters finds their names.
  void read_optimizer(const Node& root, TrainingState& training) {
    std::set<std::string> numbers;
    for (const Node& group : root.at("param_groups").items()) {
      training.groups.push_back(read_group(group, training));
      const StoredGroup& read = training.groups.back();
      numbers.insert(read.numbers.begin(), read.numbers.end());
    }
    const std::size_t first = catalog_.tensors.size();
    for (const auto& [key, node] : root.at("state").entries()) {
      if (!numbers.empty() && !numbers.contains(key)) {
        throw Unreadable(node.where() + " belongs to a parameter that is in no group");
      }
      read_state(node, key, training);
    }
    std::set<std::string> kinds;
    for (std::size_t i = first; i < catalog_.tensors.size(); ++i) {
      kinds.insert(catalog_.tensors[i].kind);
    }
    training.optimizer = class_of(kinds, training.groups);
  }

 private:
  void add(const Node& node, const std::string& name, const std::string& kind) {
    catalog_.tensors.push_back(
        records_.tensor(index_, file_.tensor(node.value()), name, kind, node.key()));
  }

  StoredGroup read_group(const Node& node, TrainingState& training) {
    StoredGroup group;
    for (const auto& [key, value] : node.entries()) {
      if (TorchFile::is_tensor(value.value())) {
        group.hyper_parameters[key] = torch::scalar(file_, value);
      } else if (!read_group_key(key, value, group)) {
        training.unread.push_back(value.key());
      }
    }
    static_cast<void>(node.at("params"));  // throws if it is missing
    return group;
  }

  // Adds the moments of one parameter.
  void read_state(const Node& node, const std::string& name, TrainingState& training) {
    for (const auto& [kind, value] : node.entries()) {
      const bool is_tensor = TorchFile::is_tensor(value.value());
      if (kind == "step") {
        training.count_steps(torch::count(file_, value));
      }
      if (!is_tensor) {
        if (!value.is_none() && !value.is_number()) {
          value.refuse("a tensor or a number");
        }
        continue;
      }
      add(value, name, kind);
    }
  }

  TorchFile file_;
  Catalog& catalog_;
  RecordTable records_;
  std::uint32_t index_;
};

}  // namespace

void read_torch_file(const InputPath& path, Catalog& catalog, TrainingState& training,
                     Provenance& provenance) {
  Reader reader(path, catalog);
  const Node root = reader.root();
  if (is_optimizer(root)) {
    reader.read_optimizer(root, training);
  } else {
    reader.read_weights(root, training);
  }
  catalog.index();
  if (provenance.format.empty()) {
    provenance.format = "torch.save";
  }
}

}  // namespace acc::checkpoint::accelerate
