// SPDX-License-Identifier: Apache-2.0
#include "deepspeed/rank_flats.hpp"

#include "acc/base/error.hpp"
#include "catalog/group_values.hpp"
#include "torch/scalar.hpp"

#include <algorithm>

namespace acc::checkpoint::deepspeed {

namespace {

using pickle::Node;
using torch::TorchFile;

/// Reads an integer, or the enumerator that DeepSpeed pickles: a class called with one integer.
int read_stage(const Node& node) {
  const pickle::Value* value = &node.value();
  if (value->is_object_of("deepspeed.runtime.zero.config", "ZeroStageEnum") &&
      value->items.size() >= 2 && value->items[1]->items.size() == 1) {
    value = value->items[1]->items[0];
  }
  if (!value->is(pickle::Value::Kind::integer) || value->integer < 1 || value->integer > 3) {
    node.refuse("a ZeRO stage, 1 to 3");
  }
  return static_cast<int>(value->integer);
}

/// Reads one rank's *_optim_states.pt.
class RankFile {
 public:
  explicit RankFile(const InputPath& path)
      : file_(path),
        state_(Node(file_.root(), path.string()).at("optimizer_state_dict")),
        stage_(stage()) {
    if (state_.find("ds_zero_partition_groups")) {
      state_.at("ds_zero_partition_groups")
          .refuse("absent, because mixture-of-experts checkpoints are not supported");
    }
  }

  /// Returns the number of ranks that this file states. Groups of experts would have other numbers.
  [[nodiscard]] std::int64_t partitions() const {
    const Node count = state_.at("partition_count");
    if (!count.is_list()) {
      return count.integer();
    }
    std::int64_t result = 0;
    for (const Node& of_group : count.items()) {
      if (result != 0 && of_group.integer() != result) {
        of_group.refuse(
            std::to_string(result) +
            ", as in the other groups (mixture-of-experts checkpoints are not supported)");
      }
      result = of_group.integer();
    }
    return result;
  }

  [[nodiscard]] std::vector<Flat> flats(OptimizerState& state) const {
    std::vector<Flat> result;
    const std::map<std::string, Node> moments = states();
    for (const Node& master : masters().items()) {
      if (!TorchFile::is_tensor(master.value())) {
        master.refuse("a tensor");
      }
      Flat flat{.master = file_.row_major_tensor(master.value()), .moments = {}};
      if (flat.master.shape.size() != 1) {
        master.refuse("a tensor of one dimension");
      }
      if (const auto found = moments.find(std::to_string(result.size())); found != moments.end()) {
        read_moments(found->second, flat, state);
      }
      result.push_back(std::move(flat));
    }
    return result;
  }

  /// Reads what is the same in all ranks' files.
  void read_common(OptimizerState& state) const {
    state.stage = stage_;
    const auto base_state = base();
    if (base_state && base_state->is_dict()) {
      read_groups(base_state->at("param_groups"), state);
    } else {
      // The elastic form of the state has no groups, and one flat array for each.
      state.unread.emplace_back(
          "the learning rate and the other settings of the optimizer, which files of "
          "elastic_checkpoint do not have (in the output they are the optimizer's defaults)");
      state.groups.resize(masters().items().size());
      for (std::size_t i = 0; i < state.groups.size(); ++i) {
        state.group_of.push_back(i);
      }
    }
    const std::size_t flats = masters().items().size();
    if (state.group_of.size() != flats) {
      masters().refuse("a list of " + std::to_string(state.group_of.size()) +
                       " tensors, one per parameter of the optimizer");
    }
    if (const auto paddings = state_.find("param_alignment_paddings"); paddings && stage_ != 3) {
      for (const Node& of_group : paddings->items()) {
        std::vector<std::int64_t>& numbers = state.alignment_paddings.emplace_back();
        for (const Node& padding : of_group.items()) {
          if (padding.integer() < 0) {
            padding.refuse("a number of elements");
          }
          numbers.push_back(padding.integer());
        }
      }
    }
    read_loss_scaler(state);
  }

  [[nodiscard]] int stage_number() const noexcept { return stage_; }

 private:
  [[nodiscard]] int stage() const {
    if (const auto stage = state_.find("zero_stage")) {
      return read_stage(*stage);
    }
    // DeepSpeed's bf16 optimizer uses the layout of stage 1 without writing zero_stage.
    if (state_.find("single_partition_of_fp32_groups")) {
      return 1;
    }
    return read_stage(state_.at("zero_stage"));
  }

  [[nodiscard]] Node masters() const {
    return state_.at(stage_ == 3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups");
  }
  [[nodiscard]] std::optional<Node> base() const {
    return state_.find(stage_ == 3 ? "optimizer_state_dict" : "base_optimizer_state");
  }

  void read_groups(const Node& groups, OptimizerState& state) const {
    for (const Node& group : groups.items()) {
      StoredGroup stored;
      for (const auto& [key, value] : group.entries()) {
        if (key == "params" || key == "step") {
          continue;
        }
        if (TorchFile::is_tensor(value.value())) {
          stored.hyper_parameters[key] = torch::scalar(file_, value);
        } else if (!read_group_key(key, value, stored)) {
          state.unread.push_back(value.key());
        }
      }
      // The group's "params" are numbers. Each stands for one flat array.
      for ([[maybe_unused]] const Node& flat : group.at("params").items()) {
        state.group_of.push_back(state.groups.size());
      }
      if (const auto step = group.find("step")) {
        state.step = torch::count(file_, *step);
      }
      state.groups.push_back(std::move(stored));
    }
  }

  // A static scale is a setting of the run, not a state, so only a dynamic scaler is read.
  void read_loss_scaler(OptimizerState& state) const {
    using Kind = pickle::Value::Kind;
    const auto scaler = state_.find("loss_scaler");
    if (!scaler || (!scaler->is_dict() && !scaler->value().is(Kind::object))) {
      return;
    }
    const auto dynamic = scaler->find("dynamic");
    if (!dynamic || !dynamic->boolean()) {
      return;
    }
    state.loss_scaler = {{"scale", scaler->at("cur_scale").real()},
                         {"iteration", scaler->at("cur_iter").real()},
                         {"last_overflow", scaler->at("last_overflow_iter").real()},
                         {"hysteresis", scaler->at("cur_hysteresis").real()}};
  }

  /// Returns the optimizer's state per flat array; empty if no step was made.
  [[nodiscard]] std::map<std::string, Node> states() const {
    std::map<std::string, Node> result;
    const auto base_state = base();
    if (!base_state) {
      return result;
    }
    if (base_state->is_dict()) {
      // The numbers run through all groups, as the flat arrays do.
      for (const auto& [number, node] : base_state->at("state").entries()) {
        result.emplace(number, node);
      }
    } else {
      const std::vector<Node> items = base_state->items();
      for (std::size_t i = 0; i < items.size(); ++i) {
        result.emplace(std::to_string(i), items[i]);
      }
    }
    return result;
  }

  // Moments may be longer than the weights, by the padding that only they keep.
  void read_moments(const Node& node, Flat& flat, OptimizerState& state) const {
    for (const auto& [kind, value] : node.entries()) {
      if (kind == "step") {
        flat.step = torch::count(file_, value);
        state.step = std::max(state.step.value_or(0), *flat.step);
        continue;
      }
      if (!TorchFile::is_tensor(value.value())) {
        continue;
      }
      const torch::TensorRef ref = file_.row_major_tensor(value.value());
      if (ref.shape.empty()) {
        continue;
      }
      if (ref.shape.size() != 1 || ref.shape[0] < flat.master.shape[0]) {
        throw Error(Errc::config, value.where() + " has shape " + to_string(ref.shape) +
                                      ", but its fp32 weights have shape " +
                                      to_string(flat.master.shape));
      }
      flat.moments[kind] = ref;
    }
  }

  TorchFile file_;
  Node state_;
  int stage_;
};

/// Throws if a rank's flat arrays do not match those of rank 0.
void check_alike(const OptimizerState& state, std::size_t rank, const std::string& path) {
  const std::vector<Flat>& first = state.ranks.front();
  const std::vector<Flat>& flats = state.ranks[rank];
  if (flats.size() != first.size()) {
    throw Error(Errc::config, path + ": has " + std::to_string(flats.size()) +
                                  " flat groups, but rank 0's file has " +
                                  std::to_string(first.size()));
  }
  for (std::size_t i = 0; i < flats.size(); ++i) {
    const std::string group = path + ": flat group " + std::to_string(i);
    if (flats[i].master.dtype != first[i].master.dtype ||
        (state.stage == 3 && flats[i].master.shape != first[i].master.shape)) {
      throw Error(Errc::config, group + " has shape " + to_string(flats[i].master.shape) +
                                    ", but rank 0's has " + to_string(first[i].master.shape));
    }
    // All ranks make a step together. Files of two saves have the same form.
    if (flats[i].step != first[i].step) {
      throw Error(Errc::config, group + " has made " + std::to_string(flats[i].step.value_or(0)) +
                                    " steps, but rank 0's " +
                                    std::to_string(first[i].step.value_or(0)) +
                                    ": the files are of two saves");
    }
    for (const auto& [kind, ref] : first[i].moments) {
      const auto found = flats[i].moments.find(kind);
      if (found == flats[i].moments.end() || found->second.dtype != ref.dtype) {
        throw Error(Errc::config, group + " has no " + kind + ", which rank 0's file has");
      }
    }
  }
}

}  // namespace

OptimizerState read_optimizer_files(const CheckpointFiles& files) {
  OptimizerState state;
  for (std::size_t rank = 0; rank < files.optimizers.size(); ++rank) {
    const InputPath& path = files.optimizers[rank];
    const RankFile file(path);
    if (rank == 0) {
      file.read_common(state);
    } else if (file.stage_number() != state.stage) {
      throw Error(Errc::config, path.string() + ": has ZeRO stage " +
                                    std::to_string(file.stage_number()) +
                                    ", but rank 0's file has " + std::to_string(state.stage));
    }
    if (file.partitions() != static_cast<std::int64_t>(files.optimizers.size())) {
      throw Error(Errc::config,
                  path.string() + ": was saved by " + std::to_string(file.partitions()) +
                      " ranks, but there are files of " + std::to_string(files.optimizers.size()));
    }
    state.ranks.push_back(file.flats(state));
    check_alike(state, rank, path.string());
  }
  return state;
}

}  // namespace acc::checkpoint::deepspeed
