// SPDX-License-Identifier: Apache-2.0
#include "units.hpp"

#include <ATen/ThreadLocalState.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <unordered_map>

namespace acc::torch::detail {

namespace autograd = ::torch::autograd;

namespace {

/// All units of this process, by module.
struct UnitTable {
  std::mutex mutex;
  std::unordered_map<const ::torch::nn::Module*, Unit*> units;  ///< guarded by `mutex`
};

UnitTable& unit_table() {
  static UnitTable table;
  return table;
}

bool in_backward() {
  return autograd::get_current_graph_task_id() != -1;
}

class BeginBackward final : public autograd::FunctionPreHook {
 public:
  explicit BeginBackward(std::shared_ptr<Use> use) : use_(std::move(use)) {}
  autograd::variable_list operator()(const autograd::variable_list& gradients) override {
    use_->begin_backward();
    return gradients;
  }

 private:
  std::shared_ptr<Use> use_;
};

class AfterAccumulate final : public autograd::PostAccumulateGradHook {
 public:
  explicit AfterAccumulate(std::function<void()> function) : function_(std::move(function)) {}
  void operator()(const Tensor&) override { function_(); }

 private:
  std::function<void()> function_;
};

c10::Storage storage_of(void* address, std::size_t nbytes, at::Device device) {
  return {c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), nbytes,
                                                at::DataPtr(address, device), nullptr, false)};
}

/// A storage without memory: reading it throws the message.
c10::Storage without_values(std::size_t nbytes, at::Device device, const std::string& message) {
  c10::Storage storage = storage_of(nullptr, nbytes, device);
  storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(message);
  return storage;
}

const c10::StorageImpl* storage_of(const Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

void set_storage(const Tensor& tensor, const c10::Storage& storage) {
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(storage);
}

void set_address(c10::Storage& storage, const void* address, at::Device device) {
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap({const_cast<void*>(address), device});
}

}  // namespace

Forward::~Forward() = default;

Unit* unit_of(const ::torch::nn::Module& module) {
  UnitTable& table = unit_table();
  const std::lock_guard lock(table.mutex);
  const auto found = table.units.find(&module);
  return found == table.units.end() ? nullptr : found->second;
}

Tensor view(const void* address, at::IntArrayRef sizes, at::ScalarType dtype, at::Device device) {
  const c10::InferenceMode outside(false);  // an inference tensor could not be used in a backward
  return at::for_blob(const_cast<void*>(address), sizes)
      .options(at::TensorOptions(dtype).device(device))
      .target_device(device)
      .make_tensor();
}

void set_memory(const Tensor& tensor, const c10::Storage& storage, at::ScalarType dtype) {
  at::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  impl.set_allow_tensor_metadata_change(true);
  impl._change_backend_component_keys(storage.device());
  impl.set_storage_and_dtype(storage, c10::scalarTypeToTypeMeta(dtype));
  impl.set_storage_offset(0);
  impl.set_sizes_contiguous(tensor.sizes().vec());
}

// ---- units

Unit::~Unit() {
  UnitTable& table = unit_table();
  const std::lock_guard lock(table.mutex);
  table.units.erase(&module);
  for (const auto& member : members) {
    autograd::impl::set_post_acc_grad_hooks(member->tensor, nullptr);
    if (member->refused.defined()) {
      member->tensor.remove_hook(member->hook);
      member->tensor.mutable_grad() = Tensor();
    }
  }
}

void Unit::install() {
  {
    UnitTable& table = unit_table();
    const std::lock_guard lock(table.mutex);
    table.units[&module] = this;
  }
  keeps_addresses_ = unit.keeps_addresses();
  parameters_ = module.parameters();
  for (const auto& member : members) {
    const Tensor& tensor = member->tensor;
    const std::size_t nbytes =
        static_cast<std::size_t>(tensor.numel()) * c10::elementSize(model.compute_dtype);
    member->working = storage_of(nullptr, nbytes, model.device);
    member->sharded = without_values(
        nbytes, model.device,
        "parameter '" + member->names[0] +
            "' is sharded and has values only while a call of its unit '" + label +
            "' runs: call the unit through acc::torch::call(unit, x), not unit->forward(x). "
            "Sharded::state_dict() returns the values of all parameters, Sharded::load_weights "
            "sets them, and the module's dtype and device cannot be changed");
    set_memory(tensor, member->sharded, model.compute_dtype);
    member->version = tensor._version();
    member->requires_grad = member->trains;
    if (member->trains) {
      member->refused = view(nullptr, tensor.sizes(), model.compute_dtype, model.device);
      set_storage(member->refused,
                  without_values(nbytes, model.device,
                                 "grad of the sharded parameter '" + member->names[0] +
                                     "': the runtime holds the gradients until Optimizer::step(), "
                                     "which returns their norm. Optimizer::set_clip_norm clips by "
                                     "norm (in place of torch::nn::utils::clip_grad_norm_), "
                                     "set_clip_value by value, zero_grad() of the optimizer or of "
                                     "the module drops them, and Sharded::optimizer makes an "
                                     "optimizer of torch"));
      member->hook = tensor.register_hook([each = member.get()](const at::TensorBase&) {
        each->tensor.mutable_grad() = Tensor();  // autograd would add to `refused`
      });
      autograd::impl::set_post_acc_grad_hooks(
          tensor,
          std::make_unique<AfterAccumulate>([this, each = member.get()] { take_gradient(*each); }));
    }
  }
}

template <typename Scope>
void Unit::locate(const Scope& scope) {
  for (const auto& member : members) {
    if (member->address != nullptr && keeps_addresses_) {
      return;
    }
    member->address = scope.raw(member->handle);
    set_address(member->working, member->address, model.device);
  }
}

void Unit::place() {
  check_values();
  for (const auto& member : members) {
    set_storage(member->tensor, member->working);
  }
}

void Unit::check_values() const {
  for (const auto& member : members) {
    const c10::StorageImpl* const storage = storage_of(member->tensor);
    if (member->tensor._version() != member->version ||
        (storage != member->sharded.unsafeGetStorageImpl() &&
         storage != member->working.unsafeGetStorageImpl())) {
      throw Error(Errc::invalid_argument,
                  "parameter '" + member->names[0] +
                      "' was changed after fully_shard, in place or by set_data, which the runtime "
                      "does not see: Sharded::load_weights sets parameters, and the optimizer "
                      "updates them");
    }
  }
}

void Unit::refuse_gradients() {
  for (const auto& member : members) {
    if (member->has_grad) {
      member->tensor.mutable_grad() = member->refused;
    }
  }
}

void Unit::remove() {
  if (is_used()) {
    return;
  }
  for (const auto& member : members) {
    set_storage(member->tensor, member->sharded);
    if (!keeps_addresses_) {  // a view of it that is used now throws
      set_address(member->working, nullptr, model.device);
    }
  }
}

class Unit::Placed {
 public:
  explicit Placed(Unit& unit) : unit_(unit) {
    unit_.place();
    ++unit_.calls_;
  }
  Placed(const Placed&) = delete;
  Placed& operator=(const Placed&) = delete;
  ~Placed() {
    --unit_.calls_;
    unit_.remove();
  }

 private:
  Unit& unit_;
};

// ---- forward

/// Opens the runtime's scope of a call. Returns the use if the call needs a backward.
std::shared_ptr<Use> Unit::begin(const Tensors& inputs, std::optional<ForwardUse>& scope) {
  std::shared_ptr<Use> use;
  follow_requires_grad();
  if (in_backward() && !backwards_.empty()) {
    return use;  // computed in its own backward, which has gathered the parameters
  }
  if (at::GradMode::is_enabled() &&
      (std::ranges::any_of(parameters_, [](const Tensor& each) { return each.requires_grad(); }) ||
       std::ranges::any_of(inputs, [](const Tensor* each) { return each->requires_grad(); }))) {
    use = std::make_shared<Use>(*this, passes());
  }
  if (!use || use->passes()) {
    scope.emplace(forward_quietly());
  } else {
    scope.emplace(in_backward() ? unit.recompute() : unit.forward());
  }
  locate(*scope);
  return use;
}

void Unit::follow_requires_grad() {
  for (const auto& member : members) {
    const bool now = member->tensor.requires_grad();
    if (now != member->requires_grad) {
      unit.set_requires_grad(member->handle, now);
      member->requires_grad = now;
    }
  }
}

bool Unit::passes() const {
  return std::ranges::any_of(members, [](const auto& each) { return each->trains; }) &&
         std::ranges::none_of(members, [](const auto& each) { return each->requires_grad; });
}

bool Unit::wants_gradients() const {
  if (passes()) {
    return false;
  }
  const auto* const executed = autograd::get_current_graph_task_exec_info();
  if (executed == nullptr || executed->empty()) {
    return true;  // of backward(), all
  }
  const auto is_computed = [&](const Tensor& parameter) {
    const auto node = autograd::impl::try_get_grad_accumulator(parameter);
    const auto found = executed->find(node.get());
    return found != executed->end() && found->second.should_execute();
  };
  return members.empty() ? std::ranges::any_of(parameters_, is_computed)
                         : std::ranges::any_of(members, [&](const auto& each) {
                             return is_computed(each->tensor);
                           });
}

ForwardUse Unit::forward_quietly() {
  const auto no_grad = model.model.no_grad();
  return unit.forward();
}

void Unit::end_quietly(ForwardUse& scope) {
  const auto no_grad = model.model.no_grad();
  scope.end();
}

void Unit::run(const std::shared_ptr<Forward>& forward) {
  if (!in_backward() && !is_used()) {
    model.follow_zero_grad();
    if (&module == model.module.get()) {
      model.check_module();
    }
  }
  const Tensors inputs = forward->inputs();
  for (const Tensor* each : inputs) {
    if (each->device().type() != model.device.type() && !each->is_cpu()) {
      throw Error(Errc::invalid_argument,
                  "unit '" + label + "' got a tensor on " + each->device().str() +
                      ", but the runtime computes on " + model.device.str());
    }
  }
  std::optional<ForwardUse> scope;  // after an exception it aborts the group
  try {
    const std::shared_ptr<Use> use = begin(inputs, scope);
    {
      const Placed placed(*this);
      prepare(inputs, use);
      const bool saves_nothing =
          use && model.runtime.activation_checkpointing() && &module != model.module.get() &&
          std::any_of(inputs.begin(), inputs.end(),
                      [](const Tensor* each) { return each->requires_grad(); });
      if (saves_nothing) {
        run_checkpointed(forward, label);
      } else {
        forward->run();
      }
      check_values();
      finish(forward->outputs(), use);
    }
    if (scope && (!use || use->passes())) {
      end_quietly(*scope);
    } else if (scope) {
      scope->end();
    }
  } catch (const std::exception& error) {
    const auto* const of_torch = dynamic_cast<const c10::Error*>(&error);
    model.runtime.abort("rank " + std::to_string(model.runtime.rank()) +
                        " left the forward of unit '" + label + "' because of: " +
                        (of_torch != nullptr ? of_torch->what_without_backtrace() : error.what()));
    throw;
  }
}

/// Casts the inputs and adds the hooks that end the backward.
void Unit::prepare(const Tensors& inputs, const std::shared_ptr<Use>& use) const {
  for (Tensor* each : inputs) {
    if (model.casts_inputs && each->is_floating_point()) {
      *each = each->to(model.compute_dtype);
    }
    if (use && &module != model.module.get() && each->requires_grad()) {
      if (each->is_leaf()) {  // autograd runs a leaf's hook before other gradients that are ready
        *each = each->view_as(*each);
      }
      each->register_hook([use](const at::TensorBase&) { use->end_backward(); });
    }
  }
}

/// Adds the hooks that begin the backward, and copies parameters that the forward returns.
void Unit::finish(const Tensors& outputs, const std::shared_ptr<Use>& use) const {
  for (Tensor* each : outputs) {
    if (each->has_storage() && std::any_of(members.begin(), members.end(), [&](const auto& member) {
          return each->storage().unsafeGetStorageImpl() == member->working.unsafeGetStorageImpl();
        })) {
      *each = each->clone();
    }
    if (use && each->requires_grad()) {
      // A hook on the node runs after the hooks on its outputs, which may end the next unit.
      if (const auto& node = each->grad_fn()) {
        node->add_pre_hook(std::make_unique<BeginBackward>(use));
      } else {
        each->register_hook([use](const at::TensorBase&) { use->begin_backward(); });
      }
    }
  }
}

// ---- backward

Use::Use(Unit& unit, bool passes)
    : unit_(unit), model_(unit.model.shared_from_this()), passes_(passes) {
  // A forward of a backward has its own backward at once; the others wait.
  unit_.awaiting_.insert(in_backward() ? unit_.awaiting_.begin() : unit_.awaiting_.end(), this);
}

Use::~Use() {
  std::erase(unit_.awaiting_, this);
}

void Use::begin_backward() {
  if (scope_ || quiet_ || ended_in_ == autograd::get_current_graph_task_id()) {
    return;
  }
  if (at::GradMode::is_enabled()) {
    throw Error(Errc::invalid_argument,
                "unit '" + unit_.label + "': backward and autograd::grad with create_graph: " +
                    "gradients of gradients of a sharded module are not supported");
  }
  model_->enter_backward(shared_from_this());
  unit_.follow_requires_grad();
  std::erase(unit_.awaiting_, this);
  if (passes_ || !unit_.wants_gradients()) {
    quiet_.emplace(unit_.forward_quietly());
    unit_.locate(*quiet_);
  } else {
    scope_.emplace(unit_.unit.backward());
    unit_.locate(*scope_);
  }
  unit_.place();
  unit_.backwards_.push_back(this);
}

void Use::end_backward() {
  if (!scope_ && !quiet_) {
    return;
  }
  ended_in_ = autograd::get_current_graph_task_id();
  std::erase(unit_.backwards_, this);
  unit_.remove();
  if (auto quiet = std::exchange(quiet_, std::nullopt)) {
    unit_.end_quietly(*quiet);
  } else {
    std::exchange(scope_, std::nullopt)->end();
  }
}

/// Begins the backward if no hook did: an output hides its tensors.
Use& Unit::require_backward(const Member& member) const {
  const auto writes = [](Use* each) { return each->scope() != nullptr; };
  auto found = std::find_if(backwards_.rbegin(), backwards_.rend(), writes);
  if (found == backwards_.rend()) {
    const auto waiting = std::find_if(awaiting_.rbegin(), awaiting_.rend(),
                                      [](Use* each) { return !each->passes(); });
    if (waiting == awaiting_.rend()) {
      throw Error(Errc::invalid_argument,
                  "parameter '" + member.names[0] + "' is used outside of its unit '" + label +
                      "': the backward of the unit has ended. Use the parameter only in calls of "
                      "its unit, or give both users one unit. A second backward (retain_graph) "
                      "needs the unit's outputs as tensors, or in tuples, vectors and maps");
    }
    (*waiting)->begin_backward();
    found = std::find_if(backwards_.rbegin(), backwards_.rend(), writes);
  }
  return **found;
}

/// Moves a gradient into the runtime's memory.
void Unit::take_gradient(Member& member) {
  Tensor gradient = std::exchange(member.tensor.mutable_grad(), Tensor());
  if (!gradient.defined()) {
    return;
  }
  BackwardUse& scope = *require_backward(member).scope();
  const RawGradient memory = scope.raw_grad(member.handle);
  Tensor& target = member.gradients[memory.data];
  if (!target.defined()) {
    target = view(memory.data, member.tensor.sizes(), model.compute_dtype, model.device);
  }
  if (gradient.is_sparse()) {
    gradient = gradient.to_dense();
  }
  if (memory.beta == 0.0F) {
    target.copy_(gradient);
  } else {
    target.add_(gradient);
  }
  member.has_grad = true;
}

/// Called by autograd at the end of a backward, and destroyed without a call when an exception ends
/// it, also one that the program catches.
class Sharding::BackwardEnd {
 public:
  explicit BackwardEnd(std::shared_ptr<Sharding> model) : model_(std::move(model)) {}
  BackwardEnd(const BackwardEnd&) = delete;
  BackwardEnd& operator=(const BackwardEnd&) = delete;
  ~BackwardEnd() {
    if (model_) {  // the peers wait in the scopes of the backward
      model_->runtime.abort(
          "rank " + std::to_string(model_->runtime.rank()) + " left the backward of unit '" +
          model_->backwards_->back()->unit().label + "' because of an error of the program");
    }
  }
  void run() { std::exchange(model_, nullptr)->leave_backward(); }

 private:
  std::shared_ptr<Sharding> model_;
};

void Sharding::enter_backward(std::shared_ptr<Use> use) {
  if (!backwards_) {
    follow_zero_grad();
    backwards_.emplace();
    autograd::Engine::get_default_engine().queue_callback(
        [end = std::make_shared<BackwardEnd>(shared_from_this())] { end->run(); });
  }
  backwards_->push_back(std::move(use));
}

/// At the end of the whole backward: ends the uses that no hook has ended, the root last.
void Sharding::leave_backward() {
  const std::vector<std::shared_ptr<Use>> backwards = std::move(*backwards_);
  backwards_.reset();
  for (const bool root : {false, true}) {
    for (const auto& use : backwards) {
      if ((&use->unit().module == module.get()) == root) {
        use->end_backward();
      }
    }
  }
  for (const auto& unit : units) {
    unit->refuse_gradients();
  }
  refuses_gradients_ = true;
}

void Sharding::follow_zero_grad() {
  if (!refuses_gradients_) {
    return;
  }
  const Member* kept = nullptr;
  const Member* dropped = nullptr;
  for (const auto& unit : units) {
    for (const auto& member : unit->members) {
      if (member->has_grad) {
        (member->tensor.grad().defined() ? kept : dropped) = member.get();
      }
    }
  }
  if (dropped == nullptr) {
    return;
  }
  if (kept != nullptr) {
    throw Error(Errc::invalid_argument,
                "zero_grad() has dropped the gradient of parameter '" + dropped->names[0] +
                    "', and not that of '" + kept->names[0] +
                    "': gradients of a sharded module are dropped together, by zero_grad() of its "
                    "optimizer or of the module");
  }
  model.zero_grad();
  for (const auto& unit : units) {
    for (const auto& member : unit->members) {
      member->has_grad = false;
    }
  }
  refuses_gradients_ = false;
}

Sharding::~Sharding() = default;

// ---- activation checkpointing

namespace {

/// Gives the arguments of a forward other values for a while.
class Replaced {
 public:
  Replaced(const Tensors& places, const std::vector<Tensor>& values) : places_(places) {
    for (std::size_t i = 0; i < places.size(); ++i) {
      kept_.push_back(std::exchange(*places[i], values[i]));
    }
  }
  Replaced(const Replaced&) = delete;
  Replaced& operator=(const Replaced&) = delete;
  ~Replaced() {
    for (std::size_t i = 0; i < places_.size(); ++i) {
      *places_[i] = std::move(kept_[i]);
    }
  }

 private:
  Tensors places_;
  std::vector<Tensor> kept_;
};

std::vector<Tensor> values_of(const Tensors& places) {
  std::vector<Tensor> values;
  std::transform(places.begin(), places.end(), std::back_inserter(values),
                 [](const Tensor* each) { return *each; });
  return values;
}

/// The random numbers of the CPU and of the devices on which the tensors are.
class RandomStates {
 public:
  explicit RandomStates(const Tensors& tensors) {
    add(at::kCPU);
    for (const Tensor* each : tensors) {
      if (each->is_cuda() && std::ranges::none_of(states_, [&](const auto& state) {
            return state.first.device() == each->device();
          })) {
        add(each->device());
      }
    }
  }

  void restore() const {
    for (const auto& [generator, state] : states_) {
      at::Generator(generator).set_state(state);
    }
  }

 private:
  void add(at::Device device) {
    const at::Generator generator = at::globalContext().defaultGenerator(device);
    states_.emplace_back(generator, generator.get_state());
  }

  std::vector<std::pair<at::Generator, Tensor>> states_;
};

/// A forward whose backward runs it again, and the state in which it ran.
struct Recomputed final : ::torch::CustomClassHolder {
  Recomputed(std::shared_ptr<Forward> in_forward, std::string in_unit)
      : forward(std::move(in_forward)), unit(std::move(in_unit)) {}

  std::shared_ptr<Forward> forward;
  std::string unit;                                   ///< empty: not that of a unit
  std::vector<std::vector<std::int64_t>> sizes = {};  ///< of the outputs, the first time
  at::ThreadLocalState thread_state = {};             ///< with the state of autocast
  RandomStates random_states = RandomStates(forward->inputs());
};

std::vector<std::vector<std::int64_t>> sizes_of(const std::vector<Tensor>& tensors) {
  std::vector<std::vector<std::int64_t>> sizes;
  for (const Tensor& each : tensors) {
    sizes.push_back(each.sizes().vec());
  }
  return sizes;
}

/// Runs the forward a second time and returns its outputs. Throws Error(invalid_argument) if it
/// fails or its outputs have other sizes than the first time.
std::vector<Tensor> run_again(const Recomputed& saved) {
  const std::string who = saved.unit.empty()
                              ? "the function of acc::torch::checkpoint, which the backward"
                              : "unit '" + saved.unit +
                                    "': its forward, which fsdp_activation_checkpointing (the key "
                                    "activation_checkpointing of a DeepSpeed file)";
  const std::string why =
      who +
      " computes again, did not do the same as the first time. Usually the forward changes an "
      "argument, such as a cache of keys and values: leave the cache out, or the setting. ";
  try {
    saved.forward->run();
  } catch (const acc::Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(Errc::invalid_argument, why + error.what());
  }
  std::vector<Tensor> outputs = values_of(saved.forward->outputs());
  if (sizes_of(outputs) != saved.sizes) {
    throw Error(Errc::invalid_argument, why + "Its outputs have other sizes");
  }
  return outputs;
}

/// Runs the forward again and its backward. Returns the gradients of its inputs.
autograd::variable_list backward_of(const Recomputed& saved,
                                    const autograd::variable_list& gradients) {
  const Tensors places = saved.forward->inputs();
  std::vector<Tensor> inputs = values_of(places);
  for (Tensor& each : inputs) {
    each = each.detach().set_requires_grad(each.requires_grad());
  }
  std::vector<Tensor> outputs;
  {
    const at::ThreadLocalStateGuard thread_state(saved.thread_state);
    const at::AutoGradMode grad_mode(true);
    const RandomStates kept(places);
    saved.random_states.restore();
    const Replaced replaced(places, inputs);
    outputs = run_again(saved);
    saved.forward->drop_result();
    kept.restore();
  }
  autograd::variable_list roots;
  autograd::variable_list root_gradients;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].requires_grad() && gradients[i].defined()) {
      roots.push_back(outputs[i]);
      root_gradients.push_back(gradients[i]);
    }
  }
  if (!roots.empty()) {
    autograd::backward(roots, root_gradients);
  }
  autograd::variable_list found;
  std::transform(inputs.begin(), inputs.end(), std::back_inserter(found),
                 [](const Tensor& each) { return each.grad(); });
  return found;
}

struct Recompute final : autograd::Function<Recompute> {
  static autograd::variable_list forward(autograd::AutogradContext* context,
                                         const c10::intrusive_ptr<Recomputed>& saved,
                                         const at::TensorList&) {
    context->set_materialize_grads(false);
    context->saved_data["forward"] = c10::IValue::make_capsule(saved);
    saved->forward->run();
    std::vector<Tensor> outputs = values_of(saved->forward->outputs());
    saved->sizes = sizes_of(outputs);
    return outputs;
  }

  static autograd::variable_list backward(autograd::AutogradContext* context,
                                          const autograd::variable_list& gradients) {
    const auto saved = context->saved_data["forward"].toCapsule();
    autograd::variable_list found = backward_of(static_cast<Recomputed&>(*saved), gradients);
    found.insert(found.begin(), Tensor());  // of `saved`
    return found;
  }
};

}  // namespace

void run_checkpointed(const std::shared_ptr<Forward>& forward, const std::string& unit) {
  const Tensors inputs = forward->inputs();
  if (!at::GradMode::is_enabled()) {
    forward->run();
    return;
  }
  if (std::none_of(inputs.begin(), inputs.end(),
                   [](const Tensor* each) { return each->requires_grad(); })) {
    throw Error(Errc::invalid_argument,
                "acc::torch::checkpoint: none of the tensors in the arguments requires a gradient, "
                "so that no backward would run the function again");
  }
  // Function::apply sees tensors in a TensorList, but not in a vector.
  const std::vector<Tensor> values = values_of(inputs);
  const autograd::variable_list found =
      Recompute::apply(c10::make_intrusive<Recomputed>(forward, unit), at::TensorList(values));
  const Tensors places = forward->outputs();
  for (std::size_t i = 0; i < places.size(); ++i) {
    *places[i] = found[i];
  }
}

void run(Unit& unit, const std::shared_ptr<Forward>& forward) {
  unit.run(forward);
}

}  // namespace acc::torch::detail
