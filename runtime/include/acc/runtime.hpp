// SPDX-License-Identifier: Apache-2.0
#pragma once

#if __cplusplus < 202002L
#error "acc/runtime.hpp needs C++20: compile with -std=c++20"
#endif

#include "acc/base/error.hpp"
#include "acc/base/export.hpp"
#include "acc/rendezvous/store.hpp"
#include "acc/runtime/initializer.hpp"
#include "acc/runtime/lr_schedule.hpp"
#include "acc/runtime/optimizers.hpp"
#include "acc/runtime/reports.hpp"
#include "acc/runtime/types.hpp"
#include "acc/settings/deepspeed_plugin.hpp"
#include "acc/settings/fsdp_plugin.hpp"
#include "acc/settings/sharding_settings.hpp"

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

/// The sharded-training runtime. A program registers its parameters in units and opens a scope
/// around each use of a unit. The runtime then gathers and frees the unit's parameters, reduces and
/// accumulates its gradients, clips them and updates the parameters, as the launcher's settings
/// say. One optimizer step looks like this:
///
///     for (int i = 0; i < runtime.gradient_accumulation_steps(); ++i) {   // micro-steps
///       for each unit: { auto use = unit.forward(); … use[weight] … }
///       for each unit in reverse: { auto use = unit.backward(); … use.grad(weight) … }
///     }
///     optimizer.step();
///
/// Threads: the thread that made a Runtime is the only one that uses it and the objects that it
/// made. Ranks: all ranks make the same calls in the same order, because most calls issue
/// collectives; a call marked "Collective" waits for the other ranks. Errors: every function may
/// throw acc::Error; after Errc::collective, peer_lost, timeout or connection the process groups
/// are aborted and every later call fails with the same reason; after peer_lost the program may go
/// on with CheckpointSeries::rejoin. docs/sharding.md describes the strategies, docs/errors.md the
/// errors.
namespace acc {

class CheckpointSeries;
class Model;
class Optimizer;

using settings::DeepSpeedPlugin;
using settings::FullyShardedDataParallelPlugin;

namespace detail {
class RuntimeState;
class ModelState;
class OptimizerState;
class UnitState;
}  // namespace detail

/// Sizes of a parameter, outermost first, row-major.
using Shape = std::vector<std::int64_t>;

struct ModelOptions {
  /// Dtype in which the program loads its weights (like `torch_dtype` of transformers): float32,
  /// bfloat16 or float16. Without mixed precision, weights and optimizer state are kept in this
  /// dtype (FSDP's low-precision mode; the moments of float16 weights are bfloat16). With mixed
  /// precision, master weights are float32. docs/sharding.md, "Precision".
  DType dtype = DType::float32;
  /// False: on a CPU, 16-bit weights are widened to float32 for the program, and its gradients are
  /// float32. True: bfloat16 weights are given to the program as they are, and its gradients are
  /// bfloat16.
  bool bfloat16_on_cpu = false;
  /// The same for float16.
  bool float16_on_cpu = false;
  /// True: the program computes its matrix products in fp8 if mixed_precision is fp8
  /// (acc/settings/fp8_settings.hpp). Weights and gradients are bfloat16 then. False:
  /// `Runtime::model` throws Error(not_supported) for mixed_precision fp8.
  bool fp8 = false;
  /// False: `Optimizer::step` throws if a unit with trained parameters had, since the last step, a
  /// forward scope without a backward scope, or a micro-step whose backward scopes asked for no
  /// gradient. True: such gradients count as zero.
  bool unused_units = false;
  /// True: each declared unit is sharded by itself, whatever fsdp_auto_wrap_policy says. For
  /// programs that have applied the policy to their own modules (`Runtime::wrap`).
  bool units_as_declared = false;
  /// Dtype of buffers that are declared without one. True: float32. False: that in which weights
  /// are gathered.
  bool float32_buffers = false;
  /// True: backwards are those of an automatic differentiation, which drops graphs, keeps them for
  /// a second backward, and computes forwards in a backward. A forward scope may then have no
  /// backward scope or several, `Unit::recompute` may come without a forward, and a step only needs
  /// one gradient of each unit that had a forward since the last step.
  bool autograd = false;
  /// True: each parameter is sharded by itself and by rows, as FSDP 2 does (`Shard(0)`): of N
  /// ranks, rank r has chunk r of `torch.chunk(parameter, N)`. The program updates the shards
  /// itself
  /// (`Model::shards`, `Model::take_gradients`, `Model::publish`), and micro-steps have no limit.
  bool by_rows = false;
};

/// A module of a program that has its own tree of modules, for `Runtime::wrap`.
struct ModuleInfo {
  std::string name;  ///< full dotted name; empty for the root
  std::string class_name;
  /// Number of elements of its own parameters (without those of its submodules) by full name. A
  /// tied parameter has the same name in each of its modules.
  std::map<std::string, std::int64_t> parameters = {};
  /// True if the program would declare it as a unit where the policy leaves the choice to the
  /// program.
  bool is_candidate = false;
};

struct ParameterOptions {
  bool trainable = true;  ///< a frozen parameter is sharded and gathered, never reduced or updated
  bool weight_decay = true;  ///< false: the optimizer's weight decay does not apply
  /// Only with `ModelOptions::by_rows`: in place of the model's. The program gives such a parameter
  /// its initial values (`Model::shards`).
  std::optional<ParameterDTypes> dtypes = {};
};

/// Handle of a registered parameter. Small and copyable; valid as long as its Model. Only the unit
/// that registered the parameter accepts the handle; any other unit throws Error(invalid_argument)
/// that names both units.
class Parameter {
 public:
  Parameter() = default;

 private:
  friend class detail::UnitState;
  Parameter(std::int32_t index, std::int32_t unit) : index_(index), unit_(unit) {}
  std::int32_t index_ = -1;
  std::int32_t unit_ = -1;  ///< number of its unit; unique in the process
};

/// Handle of a registered buffer (`Unit::buffer`). Valid as long as its Model; other units refuse
/// it as they refuse a Parameter.
class Buffer {
 public:
  Buffer() = default;

 private:
  friend class detail::UnitState;
  Buffer(std::int32_t index, std::int32_t unit) : index_(index), unit_(unit) {}
  std::int32_t index_ = -1;
  std::int32_t unit_ = -1;  ///< number of its unit; unique in the process
};

/// The device on which a program computes and on which its parameters and gradients lie.
struct ComputeDevice {
  settings::Device kind = settings::Device::cpu;
  int index = 0;           ///< index of the GPU among those visible to this process; 0 on the CPU
  std::string name;        ///< "cpu", "cuda:0 (NVIDIA H200)"
  void* stream = nullptr;  ///< GPU: cudaStream_t on which the program must compute; CPU: null
};

/// Memory for one parameter's gradient. The program computes `data = beta * data + gradient`, as a
/// GEMM does: with `beta` 0 the old content is undefined and must be overwritten; with `beta` 1 the
/// gradient is added to it. data: [numel of the parameter], float32; owned by the runtime, valid
/// until the scope ends.
struct Gradient {
  float* data;
  float beta;
};

/// The same as Gradient, in Model::compute_dtype() and in the memory of the compute device.
struct RawGradient {
  void* data;
  float beta;
};

/// A forward scope: the unit's full parameters. The constructor gathers them; the end of the scope
/// frees them if the strategy reshards after forward (FSDP: arXiv 2304.11277, section 3.2). Begin
/// and end issue collectives. Move-only; must end before the Model. If an exception destroys the
/// scope, the process groups are aborted, so that the other ranks fail instead of waiting.
class ACC_API ForwardUse {
 public:
  /// recomputes: true for `Unit::recompute`.
  explicit ForwardUse(detail::UnitState* unit, bool recomputes = false);
  ForwardUse(ForwardUse&& other) noexcept;
  ForwardUse(const ForwardUse&) = delete;
  ForwardUse& operator=(const ForwardUse&) = delete;
  ForwardUse& operator=(ForwardUse&&) = delete;
  ~ForwardUse();

  /// Returns the full parameter: [shape], float32, row-major, valid until the scope ends.
  /// Read-only: other ranks of the host may share the memory. Throws Error(invalid_argument) if
  /// Model::compute_dtype() is not float32; use `raw` then.
  [[nodiscard]] const float* operator[](Parameter parameter) const;
  /// Returns the full parameter, [shape], in Model::compute_dtype(), in memory of
  /// Runtime::device(). On a GPU it is valid for work issued to the device's stream.
  [[nodiscard]] const void* raw(Parameter parameter) const;
  /// Ends the scope now. Unlike the destructor it throws its errors. A second call does nothing.
  void end();

 private:
  detail::UnitState* unit_;
  bool recomputes_;
  int exceptions_;  ///< std::uncaught_exceptions() when the scope was opened
};

/// A backward scope: the unit's full parameters and the memory for its gradients. When as many
/// backward scopes as forward scopes have ended, the unit's gradients are reduced (with sharded
/// gradients in every micro-step, else in the last one before the step; not under
/// `Model::no_sync`). Ownership, threads and errors as for ForwardUse.
class ACC_API BackwardUse {
 public:
  explicit BackwardUse(detail::UnitState* unit);
  BackwardUse(BackwardUse&& other) noexcept;
  BackwardUse(const BackwardUse&) = delete;
  BackwardUse& operator=(const BackwardUse&) = delete;
  BackwardUse& operator=(BackwardUse&&) = delete;
  ~BackwardUse();

  /// The full parameter, as in ForwardUse.
  [[nodiscard]] const float* operator[](Parameter parameter) const;
  [[nodiscard]] const void* raw(Parameter parameter) const;
  /// Returns the memory for the gradient and says whether to overwrite it or to add to it. Each
  /// call counts as one write, so call it once per write. `data` is null for a frozen parameter.
  /// Throws Error(invalid_argument) if Model::compute_dtype() is not float32; use `raw_grad` then.
  [[nodiscard]] Gradient grad(Parameter parameter);
  /// Returns the same memory, filled with zeros if nothing was written to it in this micro-step, so
  /// that the program always adds. Null for a frozen parameter.
  [[nodiscard]] float* grad_to_add(Parameter parameter);
  /// `grad` and `grad_to_add` in Model::compute_dtype(). The zero-fill is queued on the device's
  /// stream.
  [[nodiscard]] RawGradient raw_grad(Parameter parameter);
  [[nodiscard]] void* raw_grad_to_add(Parameter parameter);
  /// Ends the scope now. Unlike the destructor it throws its errors. A second call does nothing.
  void end();

 private:
  detail::UnitState* unit_;
  int exceptions_;               ///< std::uncaught_exceptions() when the scope was opened
  bool asked_gradient_ = false;  ///< the scope gave out the gradient of a trained parameter
};

/// A set of parameters that are gathered and freed together (FSDP's unit). The runtime stores them
/// as flat parameters, sharded over the shard group: usually one for the trained and one for the
/// frozen parameters (docs/sharding.md, "Units and wrapping"). Owned by the Model; references stay
/// valid as long as the Model lives.
class ACC_API Unit {
 public:
  /// Registers a parameter. Its full name is "<unit>.<name>" ("<name>" if the unit's name is empty)
  /// and must be unique in the model. shape: each size at least 1; empty for a scalar. Throws
  /// Error(invalid_argument) after the first scope, load or optimizer of the model.
  Parameter parameter(std::string name, Shape shape, Initializer initializer,
                      ParameterOptions options = {});
  /// Gives an existing parameter of this unit a second full name (a tied weight). The second name
  /// may lie in any module. Files contain the parameter under both names; it is stored, reduced and
  /// counted once, and used through this unit.
  void tie(std::string alias_full_name, Parameter parameter);

  /// Registers values that are neither trained nor sharded (running statistics, masks, counters).
  /// Every rank holds the whole buffer. With fsdp_sync_module_states all ranks begin with rank 0's
  /// values. dtype: kept in memory and in files; without it Model::buffer_dtype(). shape: as in
  /// `parameter`, but sizes may be 0. The first use of the model throws Error(invalid_argument) if
  /// the dtype cannot hold a value of the initializer. Throws as `parameter` does.
  Buffer buffer(std::string name, Shape shape, Initializer initializer);
  Buffer buffer(std::string name, Shape shape, Initializer initializer, DType dtype);
  /// Gives a buffer a second full name, as `tie` of a parameter. Files contain it under both names.
  void tie(std::string alias_full_name, Buffer buffer);
  /// Returns the buffer's values: [shape] in its dtype, memory of Runtime::device(). The program
  /// may read and write them at any time. The first call is collective.
  [[nodiscard]] void* data(Buffer buffer);
  /// True if the addresses that scopes of this unit return for its parameters never change and
  /// their memory always holds these parameters, so that the program may keep views of it between
  /// scopes. Collective if it is the first use of the model.
  [[nodiscard]] bool keeps_addresses() const;

  /// Tells the runtime that backwards write no gradient of a trained parameter for a while (torch's
  /// requires_grad). A parameter without a gradient in any backward since the last step is left as
  /// it is: a ProgramRule gets no gradient of it, and `Optimizer::step` throws with the runtime's
  /// own rules, except plain Sgd. Throws Error(invalid_argument) if a parameter that was declared
  /// frozen shall require one, except with `ModelOptions::by_rows`: all ranks make the same calls
  /// then.
  void set_requires_grad(Parameter parameter, bool requires_grad);
  /// held: true keeps the gradients of this unit's backwards whole on each rank, as under
  /// `Model::no_sync`, also over `Model::take_gradients`, until it is false. All ranks make the
  /// same calls.
  void hold_gradients(bool held);

  /// Opens a forward scope. A micro-step begins with the first forward after a backward. Throws
  /// Error(invalid_argument) if there are more than gradient_accumulation_steps of them before a
  /// step.
  [[nodiscard]] ForwardUse forward();
  /// Opens a scope in which a forward is computed again for the backward that follows (activation
  /// checkpointing). It needs no separate backward scope, and the parameters that it gathers stay
  /// gathered for that backward. Throws Error(invalid_argument) if no forward awaits its backward.
  [[nodiscard]] ForwardUse recompute();
  /// Opens a backward scope. Throws Error(invalid_argument) if no forward awaits its backward.
  [[nodiscard]] BackwardUse backward();
  [[nodiscard]] const std::string& name() const;

 private:
  friend class detail::ModelState;
  explicit Unit(detail::UnitState* state) : state_(state) {}
  detail::UnitState* state_;
};

/// A saved activation (`Runtime::keep`). Move-only; must be destroyed before the Runtime.
class ACC_API SavedActivation {
 public:
  SavedActivation();
  SavedActivation(SavedActivation&& other) noexcept;
  SavedActivation& operator=(SavedActivation&& other) noexcept;
  ~SavedActivation();

  /// Starts the copy back to the device, so that `restore` does not wait for it.
  void prefetch();
  /// Returns the saved values: [nbytes], memory of the device, valid until this object is
  /// destroyed. Throws Error(invalid_argument) for an empty (default-constructed or moved-from)
  /// object.
  [[nodiscard]] const void* restore();

 private:
  friend class Runtime;
  class State;
  explicit SavedActivation(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

struct ExportOptions {
  std::optional<DType> dtype = {};     ///< dtype of parameters; absent: that of the master weights
  std::uint64_t max_shard_nbytes = 0;  ///< largest file of a folder; 0: 10 GB, as transformers
};

/// Options of `Model::state_dict`, as in torch's FullStateDictConfig.
struct StateDictOptions {
  bool rank0_only = true;      ///< true: `visit` is called on rank 0 only
  bool offload_to_cpu = true;  ///< true: host memory; false: memory of the compute device
};

/// A full tensor, valid during the call of `visit`. data: [numel of the shape], row-major.
struct FullTensor {
  std::string_view name;  ///< full name; a tied parameter is visited under each of its names
  const Shape& shape;
  DType dtype;  ///< dtype of the master weights, or of the buffer
  const void* data;
};
using VisitTensor = std::function<void(const FullTensor& tensor)>;

/// The program's parameters, in units. All units, parameters and buffers are declared before the
/// first scope, load or optimizer; that first use shards, allocates and initialises the model and
/// is collective. All ranks declare the same model (names, shapes, order, dtype, seed), else the
/// first use throws Error(disagreement) on every rank. Copies are handles of the same model.
class ACC_API Model {
 public:
  /// Declares the root unit, in whose scopes other units' scopes may nest; at most one per model.
  /// It holds the parameters of no other unit (embeddings, final norm, head) and stays gathered
  /// from its forward to its backward.
  Unit& root(std::string name, std::string class_name);
  /// Declares a unit. class_name: the name by which fsdp_transformer_layer_cls_to_wrap selects it.
  Unit& unit(std::string name, std::string class_name);

  /// Sets parameters by full name from a checkpoint of any supported format: a safetensors file, or
  /// a folder of them with an index; a .bin file of torch.save; a folder of torch DCP; a DeepSpeed
  /// checkpoint; a folder of `Runtime::save` or of Accelerate. Every parameter must be in it with
  /// its shape; buffers may be; other tensors are ignored with a warning. Weights that the model
  /// ties must be equal under all their names. With fsdp_cpu_ram_efficient_loading only rank 0
  /// reads and broadcasts 4 MiB at a time; otherwise each rank reads its shard. Collective. Throws
  /// Error(config) that names the file and the tensor.
  void load_weights(const std::string& path);
  /// Writes all parameters (full names, tied ones under each name) and buffers: to one file if the
  /// path ends in ".safetensors" or ".bin" (torch.save), else to a folder of safetensors files with
  /// an index. Collective; rank 0 writes and holds one unit in memory at a time. The file or folder
  /// is complete or absent. Throws Error(config) that names the path.
  void export_weights(const std::string& path, const ExportOptions& options = {});
  /// Calls `visit` for each full parameter and buffer, with one unit in memory at a time.
  /// Collective; `visit` must not use the runtime. An exception of `visit` is passed on.
  void state_dict(const StateDictOptions& options, const VisitTensor& visit);

  /// Makes the model's optimizer; there is one at a time. Parameters that no group names use
  /// `settings`. Collective. Throws Error(invalid_argument) if a group's name matches no parameter,
  /// two groups name the same parameter, a rule or a coefficient is unknown or out of its range, or
  /// the model already has an optimizer; Error(disagreement) on every rank if the ranks make
  /// different optimizers.
  Optimizer optimizer(const NamedRule& settings, const std::vector<ParameterGroup>& groups = {});
  Optimizer optimizer(const AdamW& settings, const std::vector<ParameterGroup>& groups = {});
  Optimizer optimizer(const Sgd& settings, const std::vector<ParameterGroup>& groups = {});
  /// Throws Error(not_supported) also if the settings ask for stochastic rounding, which is part of
  /// the other rules.
  Optimizer optimizer(const ProgramRule& rule);
  /// Throws Error(not_supported) also if the optimizer runs on a GPU.
  Optimizer optimizer(const MatrixRule& rule, const std::vector<ParameterGroup>& groups = {});
  /// Makes the optimizer and the schedule of the launcher's configuration (`optimizer` and
  /// `scheduler` of a DeepSpeed file). Throws Error(config) if it chooses no optimizer,
  /// Error(not_supported) if this library does not have it.
  Optimizer optimizer_from_settings();

  /// Gives rank 0's values to all ranks, as those of a buffer are shared at the beginning: with
  /// fsdp_sync_module_states, and unless `name`, the full name of the values, lies in a module of
  /// fsdp_ignored_modules. For values that the program holds itself and that are in no file. data:
  /// [nbytes], memory of Runtime::device(); CheckpointSeries::rejoin gives rank 0's values again,
  /// in the same memory. Collective.
  void share(const std::string& name, void* data, std::size_t nbytes);

  /// While the returned object lives, forward scopes expect no backward (evaluation, sampling).
  [[nodiscard]] std::shared_ptr<void> no_grad();
  /// While the returned object lives, micro-steps that end are not reduced. Each rank accumulates
  /// their whole gradients in float32; the next micro-step outside, or the step, reduces all of
  /// them at once (FSDP's no_sync: arXiv 2304.11277, section 3.3.4).
  [[nodiscard]] std::shared_ptr<void> no_sync();
  /// Drops the gradients of all backwards since the last step. Forwards before it may still have
  /// their backwards. Waits for reductions under way: all ranks call it at the same place. Throws
  /// Error(invalid_argument) inside a scope.
  void zero_grad();

  /// For a program that updates shards itself, with `ModelOptions::by_rows` and without an
  /// optimizer of the runtime.
  /// This rank's parts of all parameters, also of frozen ones. The memory stays the same; a rank
  /// changes it only between the end of its last backward's `take_gradients`, or of a `barrier`
  /// after its last scope, and `publish`. Collective at the first use of the model.
  [[nodiscard]] std::vector<ParameterShard> shards();
  /// Ends the backwards since the last call: passes the gradients of this rank's shards to `visit`,
  /// the mean over ranks of the sum over micro-steps, and drops them. Collective. Throws
  /// Error(invalid_argument) inside a scope, or if the ranks used units in different orders.
  void take_gradients(const ShardsVisit& visit);
  /// Makes the values of all shards those that the next use of the model sees. Collective. Throws
  /// Error(invalid_argument) inside a scope.
  void publish();

  /// Dtype of parameters and gradients as the program sees them. On a GPU: bfloat16 or float16 with
  /// mixed precision or with weights loaded in 16 bits, else float32. On a CPU: float32, because
  /// 16-bit weights are widened, except with ModelOptions::bfloat16_on_cpu.
  [[nodiscard]] DType compute_dtype() const;
  /// Dtype of buffers that are declared without one: that in which weights are gathered.
  [[nodiscard]] DType buffer_dtype() const;
  [[nodiscard]] std::int64_t numel() const;  ///< elements of all parameters; tied ones count once
  /// Bytes that this rank holds for the model.
  [[nodiscard]] MemoryReport memory() const;
  /// Elements that this rank passed to collectives since the last `reset_traffic`.
  [[nodiscard]] TrafficReport traffic() const;
  void reset_traffic();

 private:
  friend class Runtime;
  friend class CheckpointSeries;
  friend class detail::RuntimeState;
  explicit Model(std::shared_ptr<detail::ModelState> state) : state_(std::move(state)) {}
  std::shared_ptr<detail::ModelState> state_;
};

/// A step of an optimizer whose work has been issued. Copies share the result.
class ACC_API IssuedStep {
 public:
  /// Returns the result of the step. On a GPU it may block until the norm is computed: a program
  /// that reads it one step late does not wait. Throws Error(collective | timeout | device).
  [[nodiscard]] StepInfo result() const;

 private:
  friend class Optimizer;
  struct State;
  explicit IssuedStep(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  std::shared_ptr<const State> state_;
};

/// A mean over all ranks whose work has been issued. Copies share the result.
class ACC_API IssuedMean {
 public:
  /// Returns the mean. On a GPU it may block until it is computed. Throws Error(collective |
  /// timeout | device).
  [[nodiscard]] double value() const;

 private:
  friend class Runtime;
  struct State;
  explicit IssuedMean(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  std::shared_ptr<const State> state_;
};

/// Updates this rank's shards of one model (ZeRO: arXiv 1910.02054, section 5.1). Copies are
/// handles of the same optimizer.
class ACC_API Optimizer {
 public:
  /// Makes one optimizer step: waits for the reductions, computes the global norm of the mean
  /// gradient (mean over ranks and the micro-steps that were made, at most
  /// gradient_accumulation_steps), clips, updates, and drops the gradients.
  /// Collective. If a gradient is not finite, all ranks act alike: with fp16, or with the NaN
  /// policy "skip", no rank updates (`StepInfo::skipped`). Throws Error(collective) with the NaN
  /// policy "raise", naming unit, micro-step and ranks. Throws Error(disagreement) on every rank if
  /// the ranks' learning rates, clipping or numbers of steps differ. Throws what the schedule
  /// throws, before it changes anything. Throws Error(invalid_argument) naming unit and rank if
  /// this rank left out a backward or its gradients (`ModelOptions::unused_units`); the other ranks
  /// throw Error(collective) with the same text.
  StepInfo step();
  /// `Model::zero_grad` of its model.
  void zero_grad();
  /// `step` without waiting for the GPU, where the settings allow that: `IssuedStep::result`
  /// waits for the norm. They do not with fp16, with a NaN policy, with clipping by value and with
  /// an offloaded optimizer, because the norm then decides about the update on the host.
  IssuedStep issue_step();
  /// Factor by which the program multiplies the gradient of its loss before the backward, so that
  /// small gradients do not vanish in float16; `step` divides by it. 1 without fp16. May change in
  /// every step.
  [[nodiscard]] double loss_scale() const;

  /// Learning rate of the named group, or, without a name, of the parameters that no group names.
  /// With a schedule, `lr` returns the rate of the next step. `set_lr` ends the schedule of the
  /// parameters that it sets. Throws Error(not_found) for an unknown name, Error(invalid_argument)
  /// for a rate that is negative or not finite, and if the rates are those of a ProgramRule.
  void set_lr(double lr);
  void set_lr(const std::string& group, double lr);
  [[nodiscard]] double lr() const;
  [[nodiscard]] double lr(const std::string& group) const;
  /// Makes every later step take its learning rates from `schedule`. Its position is the number of
  /// steps made; skipped steps do not count. Checkpoints contain it.
  void set_schedule(LrSchedule schedule);
  /// The same with the betas of the optimizer, if it has some, also from the schedule.
  void set_schedule(StepSchedule schedule);

  /// Norm to which gradients are clipped (torch's clip_grad_norm_); 0: no clipping. The default is
  /// the launcher's gradient_clipping.
  void set_clip_norm(double max_norm);
  [[nodiscard]] double clip_norm() const;
  /// Limit to which each element of the mean gradient is clipped, [-max_value, max_value] (torch's
  /// clip_grad_value_); 0: no clipping. Values are clipped before the norm.
  void set_clip_value(double max_value);
  [[nodiscard]] double clip_value() const;
  /// Number of steps made, including those before a loaded checkpoint; without skipped steps.
  [[nodiscard]] std::int64_t steps() const;
  /// This rank's shards of all trained parameters, in the order in which a ProgramRule gets them.
  [[nodiscard]] std::vector<ParameterShard> shards() const;

 private:
  friend class Model;
  friend class Runtime;
  friend class detail::RuntimeState;
  explicit Optimizer(std::shared_ptr<detail::OptimizerState> state) : state_(std::move(state)) {}
  std::shared_ptr<detail::OptimizerState> state_;
};

/// Small named values of the program that are saved in a checkpoint (its step, its position in the
/// data, …). Strings may contain any bytes; names are UTF-8 and do not begin with "acc.seed.".
using ProgramValue = std::variant<std::int64_t, double, std::string>;
using ProgramState = std::map<std::string, ProgramValue>;

/// Values of the program that `Runtime::save` writes and `Runtime::load` returns.
struct SavedState {
  ProgramState program = {};  ///< rank 0's values are written; every rank loads them
  /// Values of each rank (the state of its random numbers). A rank that did not exist in the run
  /// that saved loads none.
  ProgramState of_rank = {};
};

/// What `Runtime::save_async` does while a save is in flight.
enum class IfSaving {
  wait,    ///< waits for its end
  refuse,  ///< saves nothing
};

/// A model and its optimizer.
struct Trained {
  Model model;
  Optimizer optimizer;
};

/// This process's membership in the job: rank, device, process groups and settings. Copies are
/// handles of the same runtime.
class ACC_API Runtime {
 public:
  /// Makes a runtime from the environment variables that the launcher set (docs/environment.md);
  /// without them, a job of one rank. Collective. Makes stdout line-buffered if it is a pipe, as C
  /// does on a terminal, so that the launcher shows lines when they are written and a signal that
  /// ends the process loses none (docs/jobs.md, "Output"). Throws Error(config) for settings that
  /// contradict each other, Error(disagreement) if they differ between ranks, Error(not_supported)
  /// for those that this library does not have, and Error(timeout | connection) if the ranks cannot
  /// reach each other.
  static Runtime from_environment();
  /// Does the same with settings of the program. Fields that the plugin sets win over the
  /// launcher's settings; the plugin's mode (FSDP or DeepSpeed) is used if the launcher chose none.
  /// All ranks must pass equal plugins. Throws Error(config) that names both sources of settings
  /// that exclude each other. `describe` lists the values that the program set.
  static Runtime from_environment(const FullyShardedDataParallelPlugin& plugin);
  static Runtime from_environment(const DeepSpeedPlugin& plugin);
  /// Makes a runtime from given settings (tests, programs with their own launcher). Does not change
  /// stdout. Collective.
  static Runtime from_settings(const settings::RuntimeSettings& settings);
  /// Does the same with the program's own rendezvous. store: may be null for one rank.
  static Runtime from_settings(const settings::RuntimeSettings& settings,
                               std::unique_ptr<rendezvous::Store> store);

  [[nodiscard]] int rank() const;        ///< in the job, 0 to world_size() - 1
  [[nodiscard]] int local_rank() const;  ///< on this machine
  [[nodiscard]] int world_size() const;  ///< number of ranks of the job
  [[nodiscard]] const settings::RuntimeSettings& settings() const;
  [[nodiscard]] ComputeDevice device() const;
  /// Returns one line for the user: strategy, ranks, device, precision, the source of the settings,
  /// and the values that the program's plugin set.
  [[nodiscard]] std::string summary() const;
  /// Returns the summary, followed by the sizes of the groups and the back end between their ranks,
  /// such as shm[0,1].
  [[nodiscard]] std::string describe() const;

  /// Makes an empty model. seed: of its initialisers, whose values do not depend on the number of
  /// ranks. Not collective.
  Model model(std::uint64_t seed = 0, const ModelOptions& options = {});

  /// Applies fsdp_auto_wrap_policy to the modules of a program. Returns for each module true if the
  /// policy makes it a unit; never for the root, which has all other parameters. modules: with
  /// unique names, parents before their children. Candidates are chosen if the policy is unset or
  /// TRANSFORMER_BASED_WRAP without a list of classes. Declare the chosen modules in a model with
  /// `ModelOptions::units_as_declared`. Not collective. Throws Error(config) for a class that no
  /// module has.
  [[nodiscard]] std::vector<bool> wrap(const std::vector<ModuleInfo>& modules) const;

  /// Number of micro-steps (forward and backward of one micro-batch) per optimizer step; at least
  /// 1.
  [[nodiscard]] int gradient_accumulation_steps() const;
  /// True if the program should save only a block's input (`keep`) and compute the block again
  /// (`Unit::recompute`) in the backward.
  [[nodiscard]] bool activation_checkpointing() const;
  /// Saves a copy of an activation: in host memory with fsdp_activation_checkpointing_offload, else
  /// on the device. data: [nbytes], memory of `device()`. The copy overlaps with computation; work
  /// that is issued after the call may overwrite `data`. Throws Error(invalid_argument) for a null
  /// pointer or 0 bytes.
  [[nodiscard]] SavedActivation keep(const void* data, std::size_t nbytes);
  /// Counts GPU memory that the program has allocated itself among the runtime's: in
  /// `Model::memory` and in the list of an out-of-memory (OOM) error. nbytes: negative for memory
  /// that was freed. what: purpose of the memory. Does nothing on the CPU.
  void account_memory(std::int64_t nbytes, std::string_view what);
  /// True if the micro-step whose backward has just ended was the last before `Optimizer::step()`.
  [[nodiscard]] bool last_micro_step(const Model& model) const;

  /// Returns the mean of all ranks' values, on every rank. Collective.
  [[nodiscard]] double mean(double value);
  /// The same for a value in memory of the device, of work that has been issued to its stream,
  /// without waiting for it. The result is divided by `divisor`. The value may change once the call
  /// has returned, in the order of the stream.
  [[nodiscard]] IssuedMean issue_mean(const double* value, double divisor = 1.0);
  /// Returns the values of all ranks, [world_size * values.size()] in rank order, on every rank.
  /// values: the same number on all ranks. Collective.
  [[nodiscard]] std::vector<double> all_gather(std::span<const double> values);
  /// Returns when all ranks have called it.
  void barrier();
  /// Reports values of this rank to those who watch the job (docs/watching.md), by their names:
  /// `loss`, `tokens_per_s`, `memory.CATEGORY` or names of the program. The runtime reports steps,
  /// learning rate, gradient norm, times and its own memory by itself. Takes less than a
  /// microsecond per value, waits for nobody, and does nothing if nobody watches. Returns false if
  /// a value was left out: at most 16 names and 16 memory categories of at most 31 printable
  /// characters are kept. Values may be NaN or infinite. Not collective.
  bool report(std::span<const std::pair<std::string_view, double>> values);
  bool report(std::initializer_list<std::pair<std::string_view, double>> values);
  /// Makes every later collective call of all ranks fail with `reason`, as soon as they notice. For
  /// a program that cannot go on and whose peers would otherwise wait for it.
  void abort(const std::string& reason) noexcept;

  /// Writes a checkpoint folder in Accelerate's layout (docs/checkpoints.md), in the form of
  /// fsdp_state_dict_type: SHARDED_STATE_DICT (each rank writes its shards), FULL_STATE_DICT (rank
  /// 0 writes whole tensors) or LOCAL_STATE_DICT (each rank writes its flat parameters, which only
  /// this library can read). Collective; the ranks meet once, before the folder gets its name. The
  /// folder is complete or absent: an older folder of that name stays whole until the new one is
  /// complete. Throws Error(config) that names the path if it cannot be written.
  void save(const std::string& directory, const Model& model, const Optimizer& optimizer,
            const SavedState& state = {});
  /// Saves several models, each with its optimizer; model i becomes pytorch_model_fsdp_i.
  void save(const std::string& directory, std::span<const Trained> parts,
            const SavedState& state = {});
  /// Saves the state of the call beside the training: a thread copies this rank's values to host
  /// memory and writes them, while the training goes on. What a step, or a load, changes and the
  /// thread has not copied is copied before. The program's own memory of weights (`Model::shards`,
  /// `Optimizer::shards`, ProgramRule) and of buffers is copied before the return. At most one save
  /// is in flight. A failure to write never disturbs the training: rank 0 logs a warning,
  /// `wait_save` throws it, and there is no such checkpoint. `save`, `load` and the end of the last
  /// handle of this runtime wait for a save in flight. Needs host memory for this rank's shards of
  /// weights and moments, which is kept (`MemoryReport::snapshot_bytes`). All ranks call it; only
  /// `IfSaving::refuse` communicates. Returns false if it has refused, on all ranks alike. Throws
  /// Error(not_supported) for FULL_STATE_DICT and save_16bit_model.
  bool save_async(const std::string& directory, const Model& model, const Optimizer& optimizer,
                  const SavedState& state = {}, IfSaving if_saving = IfSaving::wait);
  bool save_async(const std::string& directory, std::span<const Trained> parts,
                  const SavedState& state = {}, IfSaving if_saving = IfSaving::wait);
  /// True while this rank's save is in flight. Other ranks may see its end earlier or later.
  [[nodiscard]] bool saving() const;
  /// Waits for the save in flight, if there is one. Throws Error(config) with the reason, on all
  /// ranks alike, if it or an earlier one has failed since the last call.
  void wait_save();
  /// Loads a checkpoint saved with any strategy, precision and number of ranks by this library,
  /// torch (DCP of FSDP 1 or 2), Accelerate or DeepSpeed. Collective. Throws Error(config) that
  /// names the missing or damaged file or tensor. parts: in the order in which they were saved.
  SavedState load(const std::string& directory, Model& model, Optimizer& optimizer);
  SavedState load(const std::string& directory, std::span<const Trained> parts);

 private:
  friend class CheckpointSeries;
  friend class DataOrder;
  explicit Runtime(std::shared_ptr<detail::RuntimeState> state) : state_(std::move(state)) {}
  std::shared_ptr<detail::RuntimeState> state_;
};

}  // namespace acc
