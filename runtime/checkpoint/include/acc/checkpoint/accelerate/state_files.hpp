// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/catalog/catalog.hpp"
#include "acc/checkpoint/torch/torch_file.hpp"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

/// The files of a save folder that hold no sharded tensors, as torch.save archives that Accelerate
/// loads, and the FULL forms of model and optimizer. Writers throw Error(config) with the path;
/// readers throw it with file and key, and refuse what they do not understand.
namespace acc::checkpoint::accelerate {

using ProgramValue = std::variant<std::int64_t, double, std::string>;
using ProgramState = std::map<std::string, ProgramValue>;

/// State of a LambdaLR: last_epoch, _step_count, base_lrs, _last_lr.
struct SchedulerState {
  std::int64_t steps = 0;
  std::vector<double> base_lrs, last_lrs;
};
void write_scheduler(const std::filesystem::path& path, const SchedulerState& state);
/// Throws Unreadable if the scheduler does not count its steps in last_epoch.
SchedulerState read_scheduler(const InputPath& path);

/// State of torch.cuda.amp.GradScaler, converted from and to LossScaler::state().
void write_scaler(const std::filesystem::path& path, const std::map<std::string, double>& state);
std::map<std::string, double> read_scaler(const InputPath& path);

/// {"step": …} and the program's values of this rank.
void write_random_states(const std::filesystem::path& path, std::int64_t step,
                         const ProgramState& values);
ProgramState read_random_states(const InputPath& path);

/// A dict of the program's values.
void write_custom(const std::filesystem::path& path, const ProgramState& values);
ProgramState read_custom(const InputPath& path);

/// An entry of param_groups in the state dict of an optimizer. group_values returns all keys of the
/// class, with torch's defaults for those that we do not have ("adamw": amsgrad False, foreach
/// None, …).
struct GroupValue {
  std::string key;
  std::string pickle;  ///< data.pkl of the value alone (a DCP byte entry)
};
std::vector<GroupValue> group_values(const std::string& optimizer, const StoredGroup& group);

/// FULL_STATE_DICT of a model as torch.save writes it: an OrderedDict of tensors, streamed in the
/// order of the list. `fill(i)` provides tensor i; it is not called for one that shares a storage.
struct FullTensor {
  std::string name;
  Dtype dtype = Dtype::f32;
  Shape shape;
  std::optional<std::size_t> same_as = {};  ///< an earlier tensor whose storage this one shares
};
using FillTensor = std::function<void(std::size_t index, const torch::Sink& sink)>;
void write_model_file(const std::filesystem::path& path, const std::vector<FullTensor>& tensors,
                      const FillTensor& fill);

/// FULL_STATE_DICT of an optimizer: {"state": {NAME: {"step", KIND…}}, "param_groups": […]}. `fill`
/// is called for the moments in the order of the list. Parameters without a moment "step" get
/// `step`.
struct FullMoment {
  std::string name;
  std::string kind;
  Dtype dtype = Dtype::f32;
  Shape shape;
};
void write_optimizer_file(const std::filesystem::path& path, const std::string& optimizer,
                          std::int64_t step, const std::vector<StoredGroup>& groups,
                          const std::vector<FullMoment>& moments, const FillTensor& fill);

/// Reads a .bin or .pt file with weights (a dict of tensors, possibly below a single top key) or
/// with an optimizer. Plain torch numbers the states of an optimizer: such tensors have their
/// number as name until name_parameters is called.
void read_torch_file(const InputPath& path, Catalog& catalog, TrainingState& training,
                     Provenance& provenance);

}  // namespace acc::checkpoint::accelerate
