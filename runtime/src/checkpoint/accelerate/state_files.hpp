#pragma once

#include "checkpoint/catalog/catalog.hpp"
#include "checkpoint/torch/torch_file.hpp"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <variant>
#include <vector>

/// The files of a save folder that hold no sharded tensors, as torch.save archives that Accelerate
/// loads, and the FULL forms of model and optimizer. Writers throw Error(config) for paths; readers
/// name file and key, and refuse what they do not understand.
namespace acc::checkpoint::accelerate {

using ProgramValue = std::variant<std::int64_t, double, std::string>;
using ProgramState = std::map<std::string, ProgramValue>;

/// LambdaLR's state: last_epoch, _step_count, base_lrs, _last_lr.
struct SchedulerState {
  std::int64_t steps = 0;
  std::vector<double> base_lrs, last_lrs;
};
void write_scheduler(const std::filesystem::path& path, const SchedulerState& state);
SchedulerState read_scheduler(const std::filesystem::path& path);

/// torch.cuda.amp.GradScaler's state, from LossScaler::state() and back.
void write_scaler(const std::filesystem::path& path, const std::map<std::string, double>& state);
std::map<std::string, double> read_scaler(const std::filesystem::path& path);

/// {"step": …} and the program's own values of this rank.
void write_random_states(const std::filesystem::path& path, std::int64_t step,
                         const ProgramState& values);
ProgramState read_random_states(const std::filesystem::path& path);

/// A dict of the program's own values.
void write_custom(const std::filesystem::path& path, const ProgramState& values);
ProgramState read_custom(const std::filesystem::path& path);

/// A param_groups entry as torch.optim.AdamW's or SGD's state dict has it, all of the class's keys
/// with torch's defaults for those that we do not have ("adamw": amsgrad False, foreach None, …).
struct GroupValue {
  std::string key;
  std::string pickle;  ///< data.pkl of the value alone (a DCP byte entry)
};
std::vector<GroupValue> group_values(const std::string& optimizer, const StoredGroup& group);

/// FULL_STATE_DICT of a model as torch.save writes it: an OrderedDict of tensors, streamed in the
/// order of the list; `fill(i)` brings tensor i.
struct FullTensor {
  std::string name;
  Dtype dtype = Dtype::f32;
  Shape shape;
};
using FillTensor = std::function<void(std::size_t index, const torch::Sink& sink)>;
void write_model_file(const std::filesystem::path& path, const std::vector<FullTensor>& tensors,
                      const FillTensor& fill);

/// FULL_STATE_DICT of an optimizer: {"state": {NAME: {"step", KIND…}}, "param_groups": […]}.
/// Tensors are (name, kind) in the order in which `fill` is asked for them.
struct FullMoment {
  std::string name;
  std::string kind;
  Dtype dtype = Dtype::f32;
  Shape shape;
};
void write_optimizer_file(const std::filesystem::path& path, const std::string& optimizer,
                          std::int64_t step, const std::vector<StoredGroup>& groups,
                          const std::vector<FullMoment>& moments, const FillTensor& fill);

/// A .bin or .pt file of weights (a dict of tensors, or one with a single top key over it), or an
/// optimizer's. States that are numbered and not named (plain torch) get their names from the
/// group's param_names, or, where there is one group, from `parameters` (the weights' names in
/// their order, ties once) if all shapes agree; else Error(config) says what is missing. Throws
/// Error(config).
void read_torch_file(const std::filesystem::path& path, Catalog& catalog, TrainingState& training,
                     Provenance& provenance, const std::vector<std::string>& parameters = {});

}  // namespace acc::checkpoint::accelerate
