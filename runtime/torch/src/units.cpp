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
  return at::from_blob(const_cast<void*>(address), sizes, at::TensorOptions(dtype).device(device));
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
  }
}

void Unit::install() {
  {
    UnitTable& table = unit_table();
    const std::lock_guard lock(table.mutex);
    table.units[&module] = this;
  }
  keeps_addresses_ = unit.keeps_addresses();
  const auto parameters = module.parameters();
  needs_backward_ = std::any_of(parameters.begin(), parameters.end(),
                                [](const Tensor& each) { return each.requires_grad(); });
  for (const auto& member : members) {
    const Tensor& tensor = member->tensor;
    const std::size_t nbytes =
        static_cast<std::size_t>(tensor.numel()) * c10::elementSize(model.compute_dtype);
    member->working = storage_of(nullptr, nbytes, model.device);
    member->sharded = storage_of(nullptr, nbytes, model.device);
    member->sharded.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
        "parameter '" + member->names[0] +
        "' is sharded and has values only while a call of its unit '" + name +
        "' runs: call the unit through acc::torch::call(unit, x), not unit->forward(x). "
        "Sharded::state_dict() returns the values of all parameters, Sharded::load_weights sets "
        "them, and the module's dtype and device cannot be changed");
    set_memory(tensor, member->sharded, model.compute_dtype);
    if (member->trains) {
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
  if (++open_ > 1) {
    return;
  }
  for (const auto& member : members) {
    set_storage(member->tensor, member->working);
  }
}

void Unit::remove() {
  if (--open_ > 0) {
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
    ++unit_.calls_;
    unit_.place();
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
std::shared_ptr<Use> Unit::begin(const Tensors& inputs, std::optional<ForwardUse>& scope,
                                 std::shared_ptr<void>& no_grad) {
  std::shared_ptr<Use> use;
  if (in_backward() && !backwards_.empty()) {
    return use;  // recomputed in its own backward, which has gathered the parameters
  }
  if (in_backward() && !awaiting_.empty()) {
    scope.emplace(unit.recompute());
  } else {
    if (at::GradMode::is_enabled() &&
        (needs_backward_ || std::any_of(inputs.begin(), inputs.end(), [](const Tensor* each) {
           return each->requires_grad();
         }))) {
      use = std::make_shared<Use>(*this);
    } else {
      no_grad = model.model.no_grad();
    }
    scope.emplace(unit.forward());
  }
  locate(*scope);
  return use;
}

void Unit::run(const std::shared_ptr<Forward>& forward) {
  if (&module == model.module.get() && calls_ == 0 && !in_backward()) {
    model.check_module();
  }
  const Tensors inputs = forward->inputs();
  for (const Tensor* each : inputs) {
    if (each->device().type() != model.device.type() && !each->is_cpu()) {
      throw Error(Errc::invalid_argument,
                  "unit '" + name + "' got a tensor on " + each->device().str() +
                      ", but the runtime computes on " + model.device.str());
    }
  }
  std::shared_ptr<void> no_grad;
  std::optional<ForwardUse> scope;  // ends before `no_grad`; after an exception it aborts the group
  try {
    const std::shared_ptr<Use> use = begin(inputs, scope, no_grad);
    {
      const Placed placed(*this);
      prepare(inputs, use);
      const bool saves_nothing =
          use && model.runtime.activation_checkpointing() && &module != model.module.get() &&
          std::any_of(inputs.begin(), inputs.end(),
                      [](const Tensor* each) { return each->requires_grad(); });
      if (saves_nothing) {
        run_checkpointed(forward);
      } else {
        forward->run();
      }
      finish(forward->outputs(), use);
    }
    if (scope) {
      scope->end();
    }
  } catch (const std::exception& error) {
    const auto* const of_torch = dynamic_cast<const c10::Error*>(&error);
    model.runtime.abort("rank " + std::to_string(model.runtime.rank()) +
                        " left the forward of unit '" + name + "' because of: " +
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

Use::Use(Unit& unit) : unit_(unit), model_(unit.model.shared_from_this()) {
  unit_.awaiting_.push_back(this);
}

Use::~Use() {
  std::erase(unit_.awaiting_, this);
}

void Use::begin_backward() {
  if (scope_ || ended_) {
    return;
  }
  model_->enter_backward(shared_from_this());
  scope_.emplace(unit_.unit.backward());
  std::erase(unit_.awaiting_, this);
  unit_.backwards_.push_back(this);
  unit_.locate(*scope_);
  unit_.place();
}

void Use::end_backward() {
  if (!scope_ || ended_) {
    return;
  }
  ended_ = true;
  std::erase(unit_.backwards_, this);
  unit_.remove();
  scope_->end();
}

/// Begins the backward if no hook did: an output hides its tensors.
Use& Unit::require_backward(const Member& member) const {
  if (backwards_.empty()) {
    if (awaiting_.empty()) {
      throw Error(Errc::invalid_argument,
                  "parameter '" + member.names[0] + "' is used outside of its unit '" + name +
                      "': the backward of the unit has ended. Use the parameter only in calls of "
                      "its unit, or give both users one unit");
    }
    awaiting_.back()->begin_backward();
  }
  return *backwards_.back();
}

/// Moves a gradient into the runtime's memory.
void Unit::take_gradient(Member& member) {
  Tensor gradient = std::exchange(member.tensor.mutable_grad(), Tensor());
  if (!gradient.defined()) {
    return;
  }
  BackwardUse& scope = require_backward(member).scope();
  if (gradient.requires_grad()) {
    throw Error(Errc::invalid_argument,
                "backward with create_graph: gradients of gradients of sharded parameters are not "
                "supported");
  }
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
}

void Sharding::enter_backward(std::shared_ptr<Use> use) {
  if (!backwards_) {
    backwards_.emplace();
    autograd::Engine::get_default_engine().queue_callback([this] { leave_backward(); });
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
}

Sharding::~Sharding() {
  if (backwards_) {  // peers wait in the scopes of the failed backward
    runtime.abort("rank " + std::to_string(runtime.rank()) + " failed in a backward");
  }
}

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

/// A forward whose backward runs it again, and the state in which it ran.
struct Recomputed final : ::torch::CustomClassHolder {
  explicit Recomputed(std::shared_ptr<Forward> in_forward) : forward(std::move(in_forward)) {}

  std::shared_ptr<Forward> forward;
  at::ThreadLocalState thread_state = {};  ///< with the state of autocast
  Tensor random_state = at::globalContext().defaultGenerator(at::kCPU).get_state();
};

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
    at::Generator random = at::globalContext().defaultGenerator(at::kCPU);
    const Tensor kept_state = random.get_state();
    random.set_state(saved.random_state);
    const Replaced replaced(places, inputs);
    saved.forward->run();
    outputs = values_of(saved.forward->outputs());
    saved.forward->drop_result();
    random.set_state(kept_state);
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
    return values_of(saved->forward->outputs());
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

void run_checkpointed(const std::shared_ptr<Forward>& forward) {
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
      Recompute::apply(c10::make_intrusive<Recomputed>(forward), at::TensorList(values));
  const Tensors places = forward->outputs();
  for (std::size_t i = 0; i < places.size(); ++i) {
    *places[i] = found[i];
  }
}

void run(Unit& unit, const std::shared_ptr<Forward>& forward) {
  unit.run(forward);
}

}  // namespace acc::torch::detail
