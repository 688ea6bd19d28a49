// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <acc/base/export.hpp>
#include <acc/runtime.hpp>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/transformer.h>
#include <torch/nn/modules/transformercoder.h>
#include <torch/optim/optimizer.h>

#include <array>
#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

/// Shards any torch::nn::Module: torch computes (its kernels, its autograd), the runtime stores,
/// gathers, reduces, updates and saves the parameters. A module calls its children through
/// `acc::torch::call(child, x)` in place of `child->forward(x)`; nothing else in it changes.
///
///     acc::Runtime runtime = acc::Runtime::from_environment();
///     Net net;
///     acc::torch::Sharded sharded = acc::torch::fully_shard(net, runtime);
///     acc::Optimizer optimizer = sharded.model().optimizer(acc::AdamW{.lr = 1e-3});
///     for each batch: {
///       torch::Tensor loss = acc::torch::call(net, inputs, targets);
///       (loss * optimizer.loss_scale()).backward();
///       optimizer.step();
///     }
///
/// Threads, ranks and errors: as in acc/runtime.hpp. docs/pytorch.md describes the rules.
namespace acc::torch {

/// Options of `fully_shard`.
struct ShardOptions {
  /// Submodules that are gathered and freed together, by name ("encoder.0") or class ("Block").
  /// Absent: those that the launcher's wrap policy chooses; without a policy, the elements of each
  /// ModuleList. The module itself is the unit of all other parameters.
  std::optional<std::vector<std::string>> units = {};
  /// False for parameters without weight decay. Absent: all decay.
  std::function<bool(const std::string& name, const at::Tensor& parameter)> weight_decay = {};
  /// False: `Optimizer::step` throws if a unit had a forward and no gradient (ModelOptions).
  bool unused_units = false;
  /// Gives a parameter or buffer on the meta device its values. values: an empty tensor of its
  /// shape, on the CPU. Random numbers of torch depend on `seed` and the name alone meanwhile.
  std::function<void(const std::string& name, at::Tensor& values)> initialize = {};
  std::uint64_t seed = 0;
};

/// This rank's shards of the trained parameters, by name: master weights, one dimension, possibly
/// without elements. With their gradients while an optimizer of torch makes a step.
using Shards = ::torch::OrderedDict<std::string, at::Tensor>;
/// Makes an optimizer of torch for the shards:
///     std::make_shared<torch::optim::Adam>(shards.values(), torch::optim::AdamOptions(1e-3))
using MakeOptimizer = std::function<std::shared_ptr<::torch::optim::Optimizer>(const Shards&)>;

namespace detail {
class Sharding;
}

/// A sharded module. Copies are handles of the same; the last one ends the sharding, after which
/// the module has no values. Must be destroyed before static objects are.
class ACC_API Sharded {
 public:
  explicit Sharded(std::shared_ptr<detail::Sharding> state) : state_(std::move(state)) {}

  /// The runtime's side of the module: `optimizer`, `no_sync`, `memory`, `traffic`. Its functions
  /// that read or write files do not see torch's buffers; use those below.
  [[nodiscard]] Model& model() const;

  /// An optimizer whose update is that of an optimizer of torch, for this rank's shards.
  /// `Optimizer::step` reduces and clips the gradients and calls its `step()`. Only rules that
  /// compute each element by itself (all of torch's but LBFGS) give the same result as without
  /// shards. Learning rates are set in torch's optimizer. Its state is in all checkpoints and
  /// snapshots, for the same number of shards and the same strategy.
  [[nodiscard]] acc::Optimizer optimizer(const MakeOptimizer& make) const;

  /// Runtime::save, load, Model::load_weights and export_weights with the module's buffers.
  void save(const std::string& directory, const Optimizer& optimizer,
            const acc::SavedState& state = {}) const;
  acc::SavedState load(const std::string& directory, Optimizer& optimizer) const;
  void load_weights(const std::string& path) const;
  void export_weights(const std::string& path, const ExportOptions& options = {}) const;
  /// The full state dict: master weights and buffers, by name, on the CPU. Empty on ranks other
  /// than 0 with rank0_only. Collective.
  [[nodiscard]] std::map<std::string, at::Tensor> state_dict(bool rank0_only = true) const;

  /// Copy the module's buffers to the runtime, before it saves `model()` by other means
  /// (CheckpointSeries), and back after a load.
  void write_buffers() const;
  void read_buffers() const;

  /// Names of the units, in the order of the module; "" is the module itself.
  [[nodiscard]] std::vector<std::string> unit_names() const;

 private:
  std::shared_ptr<detail::Sharding> state_;
};

/// Shards a module's parameters over the ranks, by the launcher's strategy. Collective: all ranks
/// shard the same module. Afterwards a parameter has values only while a `call` of its unit runs;
/// any other access throws an error of torch that names the parameter and its unit. Throws
/// Error(config) if the ranks' modules differ, Error(invalid_argument) for a module that cannot be
/// sharded.
[[nodiscard]] ACC_API Sharded fully_shard(std::shared_ptr<::torch::nn::Module> module,
                                          Runtime runtime, const ShardOptions& options = {});
template <typename Impl>
[[nodiscard]] Sharded fully_shard(const ::torch::nn::ModuleHolder<Impl>& module, Runtime runtime,
                                  const ShardOptions& options = {}) {
  return fully_shard(std::shared_ptr<::torch::nn::Module>(module.ptr()), std::move(runtime),
                     options);
}

namespace detail {

class Unit;

/// The unit of a sharded module; null for a module that is no unit.
ACC_API Unit* unit_of(const ::torch::nn::Module& module);

/// A forward with its arguments, which may run again in the backward (activation checkpointing).
class ACC_API Forward {
 public:
  Forward() = default;
  Forward(const Forward&) = delete;
  Forward& operator=(const Forward&) = delete;
  virtual ~Forward();
  /// The tensors in the arguments, and, after the forward, those in its result.
  virtual std::vector<at::Tensor*> inputs() = 0;
  virtual void run() = 0;
  virtual std::vector<at::Tensor*> outputs() = 0;
  virtual void drop_result() = 0;
};

/// Runs the forward in a scope of the unit.
ACC_API void run(Unit& unit, const std::shared_ptr<Forward>& forward);
/// Runs the forward without saving its activations. unit: its name for messages; empty: none.
ACC_API void run_checkpointed(const std::shared_ptr<Forward>& forward,
                              const std::string& unit = {});
/// The forwards of LibTorch's modules that call other modules, which may be units here.
ACC_API at::Tensor forward_of(::torch::nn::SequentialImpl& sequential, at::Tensor x);
ACC_API at::Tensor forward_of(::torch::nn::TransformerEncoderImpl& encoder, const at::Tensor& src,
                              const at::Tensor& src_mask = {},
                              const at::Tensor& src_key_padding_mask = {});
ACC_API at::Tensor forward_of(::torch::nn::TransformerDecoderImpl& decoder, const at::Tensor& tgt,
                              const at::Tensor& memory, const at::Tensor& tgt_mask = {},
                              const at::Tensor& memory_mask = {},
                              const at::Tensor& tgt_key_padding_mask = {},
                              const at::Tensor& memory_key_padding_mask = {});
ACC_API at::Tensor forward_of(::torch::nn::TransformerImpl& transformer, const at::Tensor& src,
                              const at::Tensor& tgt, const at::Tensor& src_mask = {},
                              const at::Tensor& tgt_mask = {}, const at::Tensor& memory_mask = {},
                              const at::Tensor& src_key_padding_mask = {},
                              const at::Tensor& tgt_key_padding_mask = {},
                              const at::Tensor& memory_key_padding_mask = {});
template <typename Module>
concept Container = std::derived_from<Module, ::torch::nn::SequentialImpl> ||
    std::same_as<Module, ::torch::nn::TransformerEncoderImpl> ||
    std::same_as<Module, ::torch::nn::TransformerDecoderImpl> ||
    std::same_as<Module, ::torch::nn::TransformerImpl>;

using Tensors = std::vector<at::Tensor*>;
/// Appends the tensors in a value: tensors, and optionals, vectors, arrays, maps, pairs and tuples
/// of them. Those in other types are not seen.
inline void append_tensors(at::Tensor& value, Tensors& found) {
  if (value.defined()) {
    found.push_back(&value);
  }
}
template <typename Value>
void append_tensors(std::optional<Value>& value, Tensors& found);
template <typename... Values>
void append_tensors(std::tuple<Values...>& values, Tensors& found);
template <typename First, typename Second>
void append_tensors(std::pair<First, Second>& values, Tensors& found);

template <typename Value>
void append_tensors(Value& value, Tensors& found) {
  if constexpr (!std::is_const_v<Value> && !std::is_convertible_v<Value, std::string> && requires {
                  *value.begin();
                  value.end();
                }) {
    if constexpr (std::is_reference_v<decltype(*value.begin())>) {
      for (auto& each : value) {
        append_tensors(each, found);
      }
    }
  }
}
template <typename Value>
void append_tensors(std::optional<Value>& value, Tensors& found) {
  if (value) {
    append_tensors(*value, found);
  }
}
template <typename... Values>
void append_tensors(std::tuple<Values...>& values, Tensors& found) {
  std::apply([&](auto&... each) { (append_tensors(each, found), ...); }, values);
}
template <typename First, typename Second>
void append_tensors(std::pair<First, Second>& values, Tensors& found) {
  append_tensors(values.first, found);
  append_tensors(values.second, found);
}

/// Keeps the arguments and the result of a callable.
template <typename Function, typename... Arguments>
class BoundForward final : public Forward {
 public:
  using Result = std::decay_t<std::invoke_result_t<Function&, Arguments&...>>;

  template <typename... Given>
  explicit BoundForward(Function function, Given&&... given)
      : function_(std::move(function)), arguments_(std::forward<Given>(given)...) {}

  Tensors inputs() override { return tensors_of(arguments_); }
  void run() override { result_.emplace(std::apply(function_, arguments_)); }
  Tensors outputs() override { return tensors_of(result_); }
  void drop_result() override { result_.reset(); }
  Result take() {
    Result taken = std::move(*result_);
    result_.reset();
    return taken;
  }

 private:
  template <typename Value>
  static Tensors tensors_of(Value& value) {
    Tensors found;
    append_tensors(value, found);
    return found;
  }

  Function function_;
  std::tuple<Arguments...> arguments_;
  std::optional<Result> result_;
};

template <typename Function, typename... Arguments>
auto bind(Function&& function, Arguments&&... arguments) {
  return std::make_shared<BoundForward<std::decay_t<Function>, std::decay_t<Arguments>...>>(
      std::forward<Function>(function), std::forward<Arguments>(arguments)...);
}

template <typename Module>
auto& target_of(Module& module) {
  if constexpr (std::derived_from<std::remove_cv_t<Module>, ::torch::nn::Module>) {
    return module;
  } else {
    return *module.operator->();
  }
}
template <typename Module>
Module& target_of(Module* module) {
  return *module;
}

}  // namespace detail

/// Calls `module->forward(arguments…)`; if the module is a unit of a sharded module, in a scope in
/// which its parameters have values. module: a module, a pointer to one, or a ModuleHolder.
///
/// A unit's arguments are copied, as by std::async; pass std::ref(x) for one that the forward
/// changes. Tensors in arguments and results may be in optionals, vectors, arrays, maps, pairs and
/// tuples. With mixed precision, floating point tensors of a unit's arguments are cast.
///
/// Of a Sequential, which takes and returns one tensor, of a TransformerEncoder, a
/// TransformerDecoder and a Transformer, each child is called like this.
template <typename Module, typename... Arguments>
auto call(Module&& module, Arguments&&... arguments) {
  auto* const target = &detail::target_of(module);
  using Target = std::remove_cvref_t<decltype(*target)>;
  if constexpr (std::derived_from<Target, ::torch::nn::SequentialImpl>) {
    static_assert(sizeof...(Arguments) == 1, "call of a Sequential takes one tensor");
  }
  const auto forward = [target](auto&&... each) {
    if constexpr (detail::Container<Target>) {
      return detail::forward_of(*target, each...);
    } else {
      return target->forward(std::forward<decltype(each)>(each)...);
    }
  };
  if (detail::Unit* const unit = detail::unit_of(*target)) {
    const auto bound = detail::bind(forward, std::forward<Arguments>(arguments)...);
    detail::run(*unit, bound);
    return bound->take();
  }
  return forward(std::forward<Arguments>(arguments)...);
}

/// Calls `function(arguments…)` without saving its activations: the backward calls it again, with
/// the same random numbers of the CPU. Arguments and result as in `call`; one of the arguments must
/// need a gradient. The function is kept until the backward.
template <typename Function, typename... Arguments>
auto checkpoint(Function&& function, Arguments&&... arguments) {
  const auto bound =
      detail::bind(std::forward<Function>(function), std::forward<Arguments>(arguments)...);
  detail::run_checkpointed(bound);
  return bound->take();
}

}  // namespace acc::torch
