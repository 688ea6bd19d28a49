// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/torch.hpp"

#include <c10/core/Storage.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

/// Uses of units: calls of modules and hooks of autograd that open and end the runtime's scopes.
///
/// The tensors of a unit's parameters have two storages. Between uses it is one without memory,
/// which throws when it is read. During a use it is `working`, whose pointer is the gathered
/// memory. Views that autograd saves for the backward share `working`; if the runtime moves the
/// memory, only the pointer in `working` changes.
///
/// A use of a unit in a forward that needs a backward goes through this cycle:
///
///     begin of call   end of call   begin_backward  (gradients)  end_backward
///                                    |                            |
///           hook on the outputs -----'      hook on the inputs ---' or the end of the whole
///           backward
///
/// The program decides how many backwards a forward has: none (its graph is dropped), one, or
/// several (retain_graph). A backward that wants no gradient of the unit's parameters only passes
/// through: the runtime sees a forward under no_grad, in which the parameters have values.
///
/// autograd runs nodes in the reverse order of their creation, and accumulates a gradient as soon
/// as it is complete. So when the hook on an input runs, every gradient of the unit has been
/// accumulated.
namespace acc::torch::detail {

using at::Tensor;

/// A tensor, [sizes], whose elements are the runtime's memory at `address`.
Tensor view(const void* address, at::IntArrayRef sizes, at::ScalarType dtype, at::Device device);
at::ScalarType scalar_type(DType dtype);
/// Makes the tensor a row-major one of this storage and dtype, in place: the module's members are
/// the same tensor. It may have been on another device.
void set_memory(const Tensor& tensor, const c10::Storage& storage, at::ScalarType dtype);

/// A place that holds a parameter.
struct Slot {
  ::torch::nn::Module* module;
  std::string attribute;
};

/// A distinct parameter of a unit, in each of its places.
struct Member {
  std::vector<std::string> names;
  std::vector<Slot> slots;
  Tensor tensor;  ///< the module's own
  acc::Parameter handle = {};
  bool trains = false;         ///< as declared; it may be frozen between steps
  bool requires_grad = false;  ///< as the runtime knows it
  c10::Storage working = {}, sharded = {};
  std::int64_t version = 0;  ///< of the tensor: a program that writes it makes it another one
  const void* address = nullptr;
  std::map<void*, Tensor> gradients = {};  ///< views of the memory for the gradient, by address
  Tensor refused = {};  ///< `grad` after a backward: it has no values, and says so when it is read
  unsigned hook = 0;    ///< removes it before autograd accumulates
  bool has_grad = false;  ///< `grad` was set to it, and the program was not seen to drop it
};

class Use;

/// A unit of the runtime and its module.
class Unit {
 public:
  Unit(Sharding& in_model, ::torch::nn::Module& in_module, std::string in_name, acc::Unit& in_unit)
      : model(in_model),
        module(in_module),
        name(std::move(in_name)),
        label(name.empty() ? "root" : name),
        unit(in_unit) {}
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;
  ~Unit();

  /// Adds the hooks and takes the values from the parameters. Called when the runtime has
  /// initialised its own.
  void install();
  void run(const std::shared_ptr<Forward>& forward);
  /// Tells the runtime which parameters require a gradient now.
  void follow_requires_grad();
  /// Throws Error(invalid_argument) if the program has written a parameter or given it other data.
  void check_values() const;
  /// Lets reads of `grad` throw until the next backward: the runtime holds the gradients.
  void refuse_gradients();

  Sharding& model;
  ::torch::nn::Module& module;
  const std::string name;
  const std::string label;  ///< `name` in messages
  acc::Unit& unit;
  std::vector<std::unique_ptr<Member>> members;

 private:
  friend class Use;
  class Placed;

  /// True if the unit is trained, but now no parameter of it requires a gradient.
  [[nodiscard]] bool passes() const;
  /// False if the running backward computes no gradient of the unit's parameters. That of
  /// autograd::grad computes only those that it returns.
  [[nodiscard]] bool wants_gradients() const;
  /// A forward of the runtime that expects no backward.
  ForwardUse forward_quietly();
  void end_quietly(ForwardUse& scope);
  std::shared_ptr<Use> begin(const Tensors& inputs, std::optional<ForwardUse>& scope);
  void prepare(const Tensors& inputs, const std::shared_ptr<Use>& use) const;
  void finish(const Tensors& outputs, const std::shared_ptr<Use>& use) const;
  void take_gradient(Member& member);
  Use& require_backward(const Member& member) const;
  /// Points the parameters at the gathered memory. Scope: ForwardUse or BackwardUse.
  template <typename Scope>
  void locate(const Scope& scope);
  /// The parameters have values during calls and backwards.
  [[nodiscard]] bool is_used() const { return calls_ > 0 || !backwards_.empty(); }
  void place();
  void remove();

  bool keeps_addresses_ = false;
  std::vector<Tensor> parameters_;  ///< of the module and of the units in it
  int calls_ = 0;                   ///< running calls
  std::vector<Use*> awaiting_;      ///< uses whose backward has not begun
  std::vector<Use*> backwards_;     ///< uses whose backward has begun and not ended
};

/// A call of a unit that awaits its backward. Owned by the hooks of the graph that it made.
class Use : public std::enable_shared_from_this<Use> {
 public:
  /// passes: the forward has no parameter that requires a gradient.
  Use(Unit& unit, bool passes);
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  ~Use();
  void begin_backward();
  void end_backward();
  [[nodiscard]] const Unit& unit() const { return unit_; }
  [[nodiscard]] bool passes() const { return passes_; }
  /// Null if the backward passes through.
  [[nodiscard]] BackwardUse* scope() { return scope_ ? &*scope_ : nullptr; }

 private:
  Unit& unit_;
  std::shared_ptr<Sharding> model_;  ///< lives as long as the graph
  bool passes_;
  std::optional<BackwardUse> scope_;
  std::optional<ForwardUse> quiet_;  ///< in place of `scope_`: the backward passes through
  int ended_in_ = -1;                ///< the backward (graph task) in which it ended
};

/// An optimizer of torch over this rank's shards, the rule of an acc::Optimizer.
class ShardOptimizer {
 public:
  ShardOptimizer(std::span<const ParameterShard> shards, at::Device device,
                 const MakeOptimizer& make);
  void update(std::span<const ParameterShard> shards);
  /// Class and learning rates of torch's optimizer, for ProgramRule::settings.
  [[nodiscard]] std::string settings() const;
  /// The state of torch's optimizer for a checkpoint, with the layout of the shards.
  [[nodiscard]] std::string state() const;
  /// Throws Error(config) if it is of other shards.
  void load(const std::string& state);

 private:
  std::vector<at::Tensor> tensors_;
  std::string layout_;
  std::shared_ptr<::torch::optim::Optimizer> torch_;
};

/// A sharded module: the runtime's model, its units, and the state of the running backward.
class Sharding : public std::enable_shared_from_this<Sharding> {
 public:
  struct SavedBuffer {
    Tensor tensor;  ///< the module's own
    std::string name;
    acc::Unit* unit;
    acc::Buffer handle;
    Tensor memory;  ///< the runtime's
    Tensor shared;  ///< the values that Model::share has got
  };

  Sharding(std::shared_ptr<::torch::nn::Module> module, Runtime runtime, DType dtype,
           const ShardOptions& options);
  Sharding(const Sharding&) = delete;
  Sharding& operator=(const Sharding&) = delete;
  ~Sharding();

  /// Keeps what `check_module` compares. Called when all parameters have been declared.
  void remember_module();
  /// Throws Error(invalid_argument) if the module was changed after `fully_shard`.
  void check_module() const;
  void enter_backward(std::shared_ptr<Use> use);
  /// Drops the gradients if the program has dropped those of the parameters since a backward.
  /// Throws Error(invalid_argument) if it has dropped some.
  void follow_zero_grad();
  void write_buffers();
  void read_buffers();

  const std::shared_ptr<::torch::nn::Module> module;
  Runtime runtime;
  const at::Device device;
  Model model;
  const at::ScalarType compute_dtype;
  const bool casts_inputs;
  std::vector<std::unique_ptr<Unit>> units;
  std::deque<SavedBuffer> buffers;

 private:
  struct Size {
    std::string name;
    const ::torch::nn::Module* module;
    std::size_t parameters, children;
  };
  class BackwardEnd;
  void leave_backward();

  std::vector<Size> sizes_;
  bool refuses_gradients_ =
      false;  ///< there was a backward, and the program may drop its gradients
  /// Uses of the running backward, in the order of their begin.
  std::optional<std::vector<std::shared_ptr<Use>>> backwards_;
};

}  // namespace acc::torch::detail
