#pragma once

#if __cplusplus < 202002L
#error "acc/runtime.hpp needs C++20: compile with -std=c++20"
#endif

#include "acc/base/error.hpp"
#include "acc/base/export.hpp"
#include "acc/plugins/deepspeed_plugin.hpp"
#include "acc/plugins/fsdp_plugin.hpp"
#include "acc/plugins/sharding_settings.hpp"
#include "acc/rendezvous/store.hpp"
#include "acc/runtime/initializer.hpp"
#include "acc/runtime/lr_schedule.hpp"
#include "acc/runtime/optimizers.hpp"
#include "acc/runtime/reports.hpp"
#include "acc/runtime/types.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

/// The sharded-training runtime: a program registers parameters in units, brackets each unit's use
/// with a scope, and the runtime gathers, frees, reduces, accumulates, clips and updates as the
/// launcher's settings say. One thread of the program uses a Runtime and what it made; all ranks
/// make the same calls in the same order. Every function throws acc::Error.
namespace acc {

class Model;
class Optimizer;

using plugins::DeepSpeedPlugin;
using plugins::FullyShardedDataParallelPlugin;

namespace detail {
class RuntimeState;
class ModelState;
class OptimizerState;
class UnitState;
}  // namespace detail

/// Sizes of a parameter, outermost first, row-major.
using Shape = std::vector<std::int64_t>;

struct ModelOptions {
  /// In which dtype the program brings its weights (what `torch_dtype` is where a model is loaded):
  /// float32, bfloat16 or float16. Without mixed precision everything is then kept in it, weights
  /// and optimizer states too (FSDP's low-precision mode); with it, master weights are float32.
  DType dtype = DType::float32;
  /// On a CPU 16-bit weights are widened to float32 for the program, and its gradients are float32.
  /// True: bfloat16 ones are handed out, and gradients taken, as they are.
  bool bfloat16_on_cpu = false;
  /// False: `Optimizer::step` refuses a unit with trained parameters of which a forward scope had
  /// no backward scope since the last step, or a backward scope asked for no gradient. True: such
  /// gradients count as zero.
  bool unused_units = false;
};

struct ParameterOptions {
  bool trainable = true;  ///< a frozen parameter is sharded and gathered, never reduced or updated
  bool weight_decay = true;  ///< whether the optimizer's weight decay applies
};

/// A registered parameter: a small handle, valid as long as its Model. Every unit except the one
/// that registered it refuses it with Error(invalid_argument), which names both.
class Parameter {
 public:
  Parameter() = default;

 private:
  friend class detail::UnitState;
  Parameter(std::int32_t index, std::int32_t unit) : index_(index), unit_(unit) {}
  std::int32_t index_ = -1;
  std::int32_t unit_ = -1;  ///< number of its unit, unique in the process
};

/// A registered buffer (`Unit::buffer`): a small handle, valid as long as its Model. Other units
/// refuse it, as they do a parameter.
class Buffer {
 public:
  Buffer() = default;

 private:
  friend class detail::UnitState;
  Buffer(std::int32_t index, std::int32_t unit) : index_(index), unit_(unit) {}
  std::int32_t index_ = -1;
  std::int32_t unit_ = -1;  ///< number of its unit, unique in the process
};

/// Where a program computes, and so where its parameters and gradients lie.
struct ComputeDevice {
  plugins::Device kind = plugins::Device::cpu;
  int index = 0;           ///< of the GPU among those this process sees
  std::string name;        ///< "cpu", "cuda:0 (NVIDIA H200)"
  void* stream = nullptr;  ///< GPU: the cudaStream_t on which the program must compute
};

/// Where a unit's gradient is to be put. The program computes `data = beta * data + gradient`:
/// with `beta` 0 the old content is undefined and must be overwritten, with 1 it is added to (the
/// signature of a GEMM). data: [numel of the parameter], fp32.
struct Gradient {
  float* data;
  float beta;
};

/// The same in the model's compute dtype, in the memory of the compute device.
struct RawGradient {
  void* data;
  float beta;
};

/// The unit's full parameters, gathered on construction, freed on destruction when the strategy
/// reshards after forward. Move-only; must end before the Model.
class ACC_API ForwardUse {
 public:
  /// `recomputes`: `Unit::recompute`.
  explicit ForwardUse(detail::UnitState* unit, bool recomputes = false);
  ForwardUse(ForwardUse&& other) noexcept;
  ForwardUse(const ForwardUse&) = delete;
  ForwardUse& operator=(const ForwardUse&) = delete;
  ForwardUse& operator=(ForwardUse&&) = delete;
  ~ForwardUse();

  /// The full parameter: [shape], fp32, row-major, read-only (other ranks may share the memory).
  /// Throws Error(invalid_argument) where the compute dtype is another.
  [[nodiscard]] const float* operator[](Parameter parameter) const;
  /// The same in Model::compute_dtype(), whichever it is; memory of Runtime::device(), where it is
  /// valid for work on its stream.
  [[nodiscard]] const void* raw(Parameter parameter) const;
  /// Frees now what the destructor would, so that errors reach the caller.
  void end();

 private:
  detail::UnitState* unit_;
  bool recomputes_;
  int exceptions_;  ///< in flight when the scope was opened
};

/// The same for backward, with a place for the gradients. When the last backward of the micro-step
/// has ended (as many as there were forwards), the unit's gradients are reduced.
class ACC_API BackwardUse {
 public:
  explicit BackwardUse(detail::UnitState* unit);
  BackwardUse(BackwardUse&& other) noexcept;
  BackwardUse(const BackwardUse&) = delete;
  BackwardUse& operator=(const BackwardUse&) = delete;
  BackwardUse& operator=(BackwardUse&&) = delete;
  ~BackwardUse();

  [[nodiscard]] const float* operator[](Parameter parameter) const;
  [[nodiscard]] const void* raw(Parameter parameter) const;
  /// Where to put the gradient; each call tells anew whether to overwrite or to add, and counts as
  /// that write: ask once per write. `data` is null for a frozen parameter.
  [[nodiscard]] Gradient grad(Parameter parameter);
  /// The same, zero-filled where nothing was written yet, so that it is always added to.
  [[nodiscard]] float* grad_to_add(Parameter parameter);
  /// Both in Model::compute_dtype(); a zero-fill is queued on the device's stream.
  [[nodiscard]] RawGradient raw_grad(Parameter parameter);
  [[nodiscard]] void* raw_grad_to_add(Parameter parameter);
  void end();

 private:
  detail::UnitState* unit_;
  int exceptions_;               ///< in flight when the scope was opened
  bool asked_gradient_ = false;  ///< of a trained parameter
};

/// What is gathered and freed together: the runtime stores its parameters as one flat parameter,
/// sharded over the shard group. Owned by the Model; references stay valid as long as it lives.
class ACC_API Unit {
 public:
  /// Registers a parameter; only before the first use, `load` or `optimizer`. Names are unique in
  /// the unit; the full name is "<unit>.<name>" ("<name>" where the unit's name is empty).
  Parameter parameter(std::string name, Shape shape, Initializer initializer,
                      ParameterOptions options = {});
  /// A second full name for an existing parameter of this unit (a tied weight), in any module:
  /// exported and checkpointed under both, stored, reduced and counted once, used through this
  /// unit.
  void tie(std::string alias_full_name, Parameter parameter);

  /// Values that belong to the unit and are neither trained nor sharded (running statistics,
  /// masks): whole on every rank, rank 0's at first where fsdp_sync_module_states holds.
  Buffer buffer(std::string name, Shape shape, Initializer initializer);
  /// The buffer in Model::buffer_dtype(), [shape], memory of Runtime::device(); the program's to
  /// write.
  [[nodiscard]] void* data(Buffer buffer);

  [[nodiscard]] ForwardUse forward();
  /// A forward that is computed once more for the backward that follows (activation checkpointing):
  /// expects no backward of its own, and what it gathers stays for that backward.
  [[nodiscard]] ForwardUse recompute();
  [[nodiscard]] BackwardUse backward();
  [[nodiscard]] const std::string& name() const;

 private:
  friend class detail::ModelState;
  explicit Unit(detail::UnitState* state) : state_(state) {}
  detail::UnitState* state_;
};

/// A kept activation (`Runtime::keep`). Move-only; must end before the Runtime.
class ACC_API SavedActivation {
 public:
  SavedActivation();
  SavedActivation(SavedActivation&& other) noexcept;
  SavedActivation& operator=(SavedActivation&& other) noexcept;
  ~SavedActivation();

  /// Starts to bring it back, so that `restore` does not wait.
  void prefetch();
  /// The values again, [nbytes], memory of the device, valid until this ends.
  [[nodiscard]] const void* restore();

 private:
  friend class Runtime;
  class State;
  explicit SavedActivation(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

struct ExportOptions {
  std::optional<DType> dtype = {};     ///< of parameters; absent: that in which they are kept
  std::uint64_t max_shard_nbytes = 0;  ///< of a folder's files; 0: 10 GB, transformers' default
};

/// torch's FullStateDictConfig.
struct StateDictOptions {
  bool rank0_only = true;      ///< the other ranks' `visit` is not called
  bool offload_to_cpu = true;  ///< false: values lie in the compute device's memory
};

/// A full tensor, valid during the call. data: [numel of the shape], row-major.
struct FullTensor {
  std::string_view name;  ///< full name; a tied one comes under each of its names
  const Shape& shape;
  DType dtype;  ///< in which master weights are kept; buffers float32
  const void* data;
};
using VisitTensor = std::function<void(const FullTensor& tensor)>;

/// The program's parameters. Copies are handles on the same model.
class ACC_API Model {
 public:
  /// A unit that other units' scopes may nest in; there is at most one. It holds what no other unit
  /// took (embeddings, final norm, head) and stays gathered from its forward to its backward.
  Unit& root(std::string name, std::string class_name);
  /// `class_name` is what fsdp_transformer_layer_cls_to_wrap selects.
  Unit& unit(std::string name, std::string class_name);

  /// Takes initial values by full name from a checkpoint of any format: a safetensors file, or a
  /// folder of them with an index; a .bin of torch.save; a folder of torch DCP; a DeepSpeed
  /// checkpoint; a folder of `Runtime::save` or of Accelerate's. Every parameter must be there in
  /// its shape, buffers may be; other tensors are ignored. With fsdp_cpu_ram_efficient_loading only
  /// rank 0 reads, and hands on a few megabytes at a time; without, each rank reads its shard.
  void load_weights(const std::string& path);
  /// Writes all parameters (full names, ties under both) and buffers: one file "….safetensors" or
  /// "….bin" (torch.save), or, for a path without such an ending, a folder of safetensors files
  /// with an index. Collective; rank 0 writes, one unit in memory at a time. Complete or absent.
  void export_weights(const std::string& path, const ExportOptions& options = {});
  /// Hands the full parameters and buffers to the program, one after the other, one unit in memory
  /// at a time. Collective; `visit` may not use the runtime.
  void state_dict(const StateDictOptions& options, const VisitTensor& visit);

  /// Parameters that no group names have `settings` as they are. Throws Error(config) for a group
  /// that names nothing, and for parameters that two groups name.
  Optimizer optimizer(const AdamW& settings, const std::vector<ParameterGroup>& groups = {});
  Optimizer optimizer(const Sgd& settings, const std::vector<ParameterGroup>& groups = {});
  /// What the launcher's configuration says (`optimizer` and `scheduler` of a DeepSpeed file).
  /// Throws Error(config) where it says nothing.
  Optimizer optimizer_from_settings();

  /// While it lives, forward scopes expect no backward (evaluation, sampling).
  [[nodiscard]] std::shared_ptr<void> no_grad();
  /// While it lives, micro-steps that end are not reduced: their gradients are accumulated whole on
  /// each rank (FSDP's no_sync), and the next micro-step outside reduces all of them at once.
  [[nodiscard]] std::shared_ptr<void> no_sync();

  /// What parameters and gradients are for the program: float32, or on a GPU with mixed precision
  /// or a model that is loaded in 16 bits, bfloat16 or float16. (On the CPU 16-bit weights are
  /// widened before use.)
  [[nodiscard]] DType compute_dtype() const;
  [[nodiscard]] DType buffer_dtype() const;
  [[nodiscard]] std::int64_t numel() const;  ///< elements of all parameters, tied ones once
  [[nodiscard]] MemoryReport memory() const;
  /// Counts since the last `reset_traffic`.
  [[nodiscard]] TrafficReport traffic() const;
  void reset_traffic();

 private:
  friend class Runtime;
  friend class detail::RuntimeState;
  explicit Model(std::shared_ptr<detail::ModelState> state) : state_(std::move(state)) {}
  std::shared_ptr<detail::ModelState> state_;
};

/// Updates the shards of one model. Copies are handles on the same optimizer.
class ACC_API Optimizer {
 public:
  /// Finishes the reductions, scales (mean over ranks and micro-steps), clips to `clip_norm`,
  /// updates, and forgets the gradients. Collective. Without `set_clip_norm` the launcher's
  /// gradient_clipping holds; 0 is no clipping. Throws Error(invalid_argument) that names unit and
  /// rank where this rank forgot a backward or its gradients (`ModelOptions::unused_units`), and
  /// Error(collective) with the same text on the other ranks.
  StepInfo step();
  /// With fp16, by what the program multiplies the gradient of its loss before the backward, so
  /// that small gradients survive; `step` divides by it. 1 otherwise.
  [[nodiscard]] double loss_scale() const;

  /// Of the parameters that no group names, and, with its name, of a group. With a schedule the
  /// next step's rate; `set_lr` ends the schedule of what it sets.
  void set_lr(double lr);
  void set_lr(const std::string& group, double lr);
  [[nodiscard]] double lr() const;
  [[nodiscard]] double lr(const std::string& group) const;
  /// From now on every step takes its learning rates from `schedule`; steps that are skipped do not
  /// count. Its place travels with checkpoints.
  void set_schedule(LrSchedule schedule);

  void set_clip_norm(double max_norm);
  [[nodiscard]] double clip_norm() const;
  /// Clips each element of the mean gradient to [-max_value, max_value] (torch's clip_grad_value_);
  /// 0: no. With a norm to clip to as well, values come first.
  void set_clip_value(double max_value);
  [[nodiscard]] double clip_value() const;
  /// Steps made, those before a checkpoint that was loaded included.
  [[nodiscard]] std::int64_t steps() const;

 private:
  friend class Model;
  friend class Runtime;
  friend class detail::RuntimeState;
  explicit Optimizer(std::shared_ptr<detail::OptimizerState> state) : state_(std::move(state)) {}
  std::shared_ptr<detail::OptimizerState> state_;
};

/// Small named values of the program itself that travel with a checkpoint (its step, its place in
/// the data, …). Texts may hold any bytes; names are UTF-8 and do not begin with "acc.seed.".
using ProgramValue = std::variant<std::int64_t, double, std::string>;
using ProgramState = std::map<std::string, ProgramValue>;

/// What `Runtime::save` writes besides one model and its optimizer, and `load` brings back.
struct SavedState {
  ProgramState program = {};  ///< rank 0's are written; all ranks get them
  /// This rank's own (the state of its random numbers); a rank that the saving run did not have
  /// gets none.
  ProgramState of_rank = {};
};

/// A model and what trains it.
struct Trained {
  Model model;
  Optimizer optimizer;
};

class ACC_API Runtime {
 public:
  /// Rank, groups and settings from the environment that the launcher made; one rank without it.
  static Runtime from_environment();
  /// The same, but for what the program fills in: it wins over what the launcher injected, and its
  /// mode holds where the launcher chose none. Throws Error(config) with both places for what
  /// excludes each other. `describe` tells which values are the program's.
  static Runtime from_environment(const FullyShardedDataParallelPlugin& plugin);
  static Runtime from_environment(const DeepSpeedPlugin& plugin);
  /// The same from settings in hand (tests, programs with their own launcher).
  static Runtime from_settings(const plugins::RuntimeSettings& settings);
  /// And with a rendezvous of the program's own; `store` may be null for one rank.
  static Runtime from_settings(const plugins::RuntimeSettings& settings,
                               std::unique_ptr<rendezvous::Store> store);

  [[nodiscard]] int rank() const;
  [[nodiscard]] int local_rank() const;
  [[nodiscard]] int world_size() const;
  [[nodiscard]] const plugins::RuntimeSettings& settings() const;
  [[nodiscard]] ComputeDevice device() const;
  /// One line for the user: strategy, groups, precision, where they come from, and what the
  /// program's own plugin set.
  [[nodiscard]] std::string describe() const;

  /// A new model; `seed` feeds its initialisers, whose values do not depend on the world size.
  Model model(std::uint64_t seed = 0, const ModelOptions& options = {});

  [[nodiscard]] int gradient_accumulation_steps() const;
  /// Whether the program is asked to keep a block's input alone and compute the block again
  /// (`Unit::recompute`) in the backward.
  [[nodiscard]] bool activation_checkpointing() const;
  /// Keeps a copy of `data` (memory of `device()`) until it is wanted again: in host memory where
  /// fsdp_activation_checkpointing_offload holds, else where it is. Copies run beside what is
  /// computed; `data` may be overwritten by work issued after the call.
  [[nodiscard]] SavedActivation keep(const void* data, std::size_t nbytes);
  /// True when this micro-step's backward was the last before `Optimizer::step()`.
  [[nodiscard]] bool last_micro_step(const Model& model) const;

  /// Collective helpers for the program's own figures; values: same length on all ranks.
  [[nodiscard]] double mean(double value);
  /// values of all ranks, [world_size * values.size()], rank-major, on every rank.
  [[nodiscard]] std::vector<double> all_gather(std::span<const double> values);
  void barrier();

  /// Writes a checkpoint folder in Accelerate's layout, in the form that the settings' state dict
  /// type names; collective. SHARDED_STATE_DICT: each rank writes its shards at once, and the ranks
  /// meet once, before the folder gets its name. Complete or absent: an older folder of that name
  /// stays whole until the new one is. Throws Error(config) naming the path when it cannot be
  /// written.
  void save(const std::string& directory, const Model& model, const Optimizer& optimizer,
            const SavedState& state = {});
  /// The same for several models, each with its optimizer: number i is pytorch_model_fsdp_i.
  void save(const std::string& directory, std::span<const Trained> parts,
            const SavedState& state = {});
  /// Reads what any strategy, precision and number of ranks saved, here, in torch (DCP of FSDP 1 or
  /// 2), Accelerate or DeepSpeed; collective. What is damaged is refused and named.
  SavedState load(const std::string& directory, Model& model, Optimizer& optimizer);
  SavedState load(const std::string& directory, std::span<const Trained> parts);

 private:
  friend class CheckpointSeries;
  explicit Runtime(std::shared_ptr<detail::RuntimeState> state) : state_(std::move(state)) {}
  std::shared_ptr<detail::RuntimeState> state_;
};

}  // namespace acc
