#include "acc/runtime.hpp"

#include "acc/plugins/environment.hpp"
#include "acc/rendezvous/store.hpp"
#include "checkpoint/model_files.hpp"
#include "collectives/make_group.hpp"
#include "model_state.hpp"
#include "optimizer_state.hpp"
#include "runtime_state.hpp"

#include <fmt/format.h>

#include <array>
#include <exception>
#include <utility>

namespace acc {

namespace {

/// Calls into the groups and the device. A failure there ends every group of this rank with its
/// reason, so that all peers, whichever group they wait in, name the first cause.
template <typename Call>
decltype(auto) guarded(const sharding::Groups& groups, const Call& call) {
  try {
    return call();
  } catch (const Error& error) {
    if (error.code() == Errc::collective || error.code() == Errc::timeout ||
        error.code() == Errc::connection) {
      groups.abort(error.what());
    } else if (error.code() == Errc::out_of_memory || error.code() == Errc::device) {
      groups.abort(fmt::format("rank {}: {}", groups.world->rank(), error.what()));
    }
    throw;
  }
}

/// Ends a scope in its destructor. While an error unwinds the program the collectives that would be
/// due make no sense: the groups are ended instead. A failure shows again at the next call.
template <typename Use>
void close_scope(Use& use, detail::UnitState* unit, int exceptions) noexcept {
  if (unit == nullptr) {
    return;
  }
  const auto& groups = unit->model->engine().groups;
  if (std::uncaught_exceptions() > exceptions) {
    groups.abort(fmt::format("rank {} left a scope of unit '{}' by an error of the program",
                             unit->model->engine().settings.identity.rank, unit->name));
    return;
  }
  try {
    use.end();
  } catch (const std::exception& error) {
    groups.abort(error.what());
  }
}

void check_view_is_float(const detail::UnitState& unit) {
  const DType dtype = unit.model->engine().view_dtype;
  if (dtype != DType::float32) {
    throw Error(Errc::invalid_argument,
                fmt::format("unit '{}' has its parameters in {}: ask for them by raw()", unit.name,
                            to_string(dtype)));
  }
}

/// All ranks' `values` through the memory of a GPU.
std::vector<double> gather_figures(const detail::RuntimeState& state,
                                   std::span<const double> values) {
  device::Device& device = *state.compute.device;
  std::vector<double> all(values.size() * static_cast<std::size_t>(state.groups.world->size()));
  const auto memory = device.allocate(all.size() * sizeof(double), "figures of the program");
  auto* const own =
      memory->as<double>() + values.size() * static_cast<std::size_t>(state.groups.world->rank());
  device.copy(own, values.data(), values.size_bytes(), device.compute());
  state.groups.world->all_gather(own, memory->data(), values.size_bytes())->wait_released();
  device.copy(all.data(), memory->data(), memory->nbytes(), device.compute());
  device.record(device.compute())->synchronize();
  return all;
}

}  // namespace

// --- scopes ---

ForwardUse::ForwardUse(detail::UnitState* unit)
    : unit_(unit), exceptions_(std::uncaught_exceptions()) {
  guarded(unit_->model->engine().groups, [&] {
    unit_->model->finalize();
    unit_->model->before_forward(*unit_);
  });
}

ForwardUse::ForwardUse(ForwardUse&& other) noexcept
    : unit_(std::exchange(other.unit_, nullptr)), exceptions_(other.exceptions_) {}

ForwardUse::~ForwardUse() {
  close_scope(*this, unit_, exceptions_);
}

void ForwardUse::end() {
  if (auto* unit = std::exchange(unit_, nullptr)) {
    guarded(unit->model->engine().groups, [&] { unit->model->after_forward(*unit); });
  }
}

const float* ForwardUse::operator[](Parameter parameter) const {
  check_view_is_float(*unit_);
  return static_cast<const float*>(raw(parameter));
}

const void* ForwardUse::raw(Parameter parameter) const {
  return unit_->owner->parameter(unit_->owner_index(parameter));
}

BackwardUse::BackwardUse(detail::UnitState* unit)
    : unit_(unit), exceptions_(std::uncaught_exceptions()) {
  guarded(unit_->model->engine().groups, [&] {
    unit_->model->finalize();
    unit_->model->before_backward(*unit_);
  });
}

BackwardUse::BackwardUse(BackwardUse&& other) noexcept
    : unit_(std::exchange(other.unit_, nullptr)), exceptions_(other.exceptions_) {}

BackwardUse::~BackwardUse() {
  close_scope(*this, unit_, exceptions_);
}

void BackwardUse::end() {
  if (auto* unit = std::exchange(unit_, nullptr)) {
    guarded(unit->model->engine().groups, [&] { unit->model->after_backward(*unit); });
  }
}

const float* BackwardUse::operator[](Parameter parameter) const {
  check_view_is_float(*unit_);
  return static_cast<const float*>(raw(parameter));
}

const void* BackwardUse::raw(Parameter parameter) const {
  return unit_->owner->parameter(unit_->owner_index(parameter));
}

Gradient BackwardUse::grad(Parameter parameter) {
  check_view_is_float(*unit_);
  const RawGradient place = raw_grad(parameter);
  return {.data = static_cast<float*>(place.data), .beta = place.beta};
}

float* BackwardUse::grad_to_add(Parameter parameter) {
  check_view_is_float(*unit_);
  return static_cast<float*>(raw_grad_to_add(parameter));
}

RawGradient BackwardUse::raw_grad(Parameter parameter) {
  const auto target = guarded(unit_->model->engine().groups, [&] {
    return unit_->owner->gradient(unit_->owner_index(parameter));
  });
  return {.data = target.data, .beta = target.written ? 1.0F : 0.0F};
}

void* BackwardUse::raw_grad_to_add(Parameter parameter) {
  const std::size_t index = unit_->owner_index(parameter);
  const auto target =
      guarded(unit_->model->engine().groups, [&] { return unit_->owner->gradient(index); });
  if (target.data != nullptr && !target.written) {
    const auto& engine = unit_->model->engine();
    const auto numel =
        static_cast<std::size_t>(unit_->parameters[index - unit_->first_in_owner].numel);
    engine.device->zero(target.data, numel * nbytes_of(engine.view_dtype),
                        engine.device->compute());
  }
  return target.data;
}

// --- unit, model, optimizer ---

Parameter Unit::parameter(std::string name, Shape shape, Initializer initializer,
                          ParameterOptions options) {
  return state_->add(std::move(name), std::move(shape), std::move(initializer), options);
}

void Unit::tie(std::string alias_full_name, Parameter parameter) {
  state_->tie(std::move(alias_full_name), parameter);
}

ForwardUse Unit::forward() {
  return ForwardUse(state_);
}
BackwardUse Unit::backward() {
  return BackwardUse(state_);
}
const std::string& Unit::name() const {
  return state_->name;
}

Unit& Model::root(std::string name, std::string class_name) {
  return state_->add_unit(std::move(name), std::move(class_name), true);
}

Unit& Model::unit(std::string name, std::string class_name) {
  return state_->add_unit(std::move(name), std::move(class_name), false);
}

void Model::load_safetensors(const std::string& path) {
  guarded(state_->engine().groups, [&] {
    state_->finalize();
    checkpoint::load_weights(*state_, path);
  });
}

void Model::export_safetensors(const std::string& path) {
  state_->finalize();
  guarded(state_->engine().groups, [&] { checkpoint::export_weights(*state_, path); });
}

Optimizer Model::optimizer(const AdamW& settings) {
  return Optimizer(std::make_shared<detail::OptimizerState>(state_, settings));
}

Optimizer Model::optimizer(const Sgd& settings) {
  return Optimizer(std::make_shared<detail::OptimizerState>(state_, settings));
}

std::shared_ptr<void> Model::no_grad() {
  auto& depth = state_->engine().no_grad_depth;
  ++depth;
  return {nullptr, [state = state_, &depth](void*) { --depth; }};
}

DType Model::compute_dtype() const {
  return state_->engine().view_dtype;
}
std::int64_t Model::numel() const {
  return state_->numel();
}
MemoryReport Model::memory() const {
  return state_->memory();
}
TrafficReport Model::traffic() const {
  return state_->engine().traffic;
}
void Model::reset_traffic() {
  state_->engine().traffic = {};
}

StepInfo Optimizer::step() {
  return state_->step();
}
void Optimizer::set_lr(double lr) {
  state_->lr = lr;
}
double Optimizer::lr() const {
  return state_->lr;
}
void Optimizer::set_clip_norm(double max_norm) {
  state_->clip_norm = max_norm;
}
double Optimizer::clip_norm() const {
  return state_->clip_norm;
}

// --- runtime ---

Runtime Runtime::from_environment() {
  return from_settings(plugins::settings_from_environment(plugins::current_environment()));
}

Runtime Runtime::from_settings(const plugins::RuntimeSettings& settings) {
  return from_settings(settings, collectives::connect_store(settings.identity));
}

Runtime Runtime::from_settings(const plugins::RuntimeSettings& settings,
                               std::unique_ptr<rendezvous::Store> store) {
  return Runtime(std::make_shared<detail::RuntimeState>(settings, std::move(store)));
}

int Runtime::rank() const {
  return state_->settings.identity.rank;
}
int Runtime::local_rank() const {
  return state_->settings.identity.local_rank;
}
int Runtime::world_size() const {
  return state_->settings.identity.world_size;
}
const plugins::RuntimeSettings& Runtime::settings() const {
  return state_->settings;
}

ComputeDevice Runtime::device() const {
  device::Device& device = *state_->compute.device;
  return {.kind = device.kind(),
          .index = device.index(),
          .name = device.describe(),
          .stream = device.compute().native()};
}

std::string Runtime::describe() const {
  const auto& plan = state_->groups.plan;
  const auto& sharding = state_->settings.sharding;
  std::string text = fmt::format(
      "{} (from {}), {} on {}, {}, shard group {} x replicate group {}, precision {}, "
      "{}",
      to_string(sharding.strategy), state_->settings.origin,
      world_size() == 1 ? "one rank" : fmt::format("{} ranks", world_size()),
      state_->settings.identity.num_nodes == 1
          ? "one machine"
          : fmt::format("{} machines", state_->settings.identity.num_nodes),
      state_->compute.device->describe(), plan.shard_size(), plan.replicate_size(),
      sharding.mixed_precision == plugins::MixedPrecision::bf16 ? "bf16 with fp32 master" : "fp32",
      state_->groups.shard->describe());
  if (state_->groups.hpz) {
    text += fmt::format(", secondary copy over {}", plan.hpz.size());
  }
  return text;
}

Model Runtime::model(std::uint64_t seed) {
  return Model(std::make_shared<detail::ModelState>(state_->settings, state_->groups,
                                                    state_->compute.device, state_->tracer, seed));
}

int Runtime::gradient_accumulation_steps() const {
  return std::max(1, state_->settings.sharding.gradient_accumulation_steps);
}

bool Runtime::last_micro_step(const Model& model) const {
  return model.state_->last_micro_step();
}

double Runtime::mean(double value) {
  std::array<double, 1> sum = {value};
  guarded(state_->groups, [&] { state_->groups.world->all_reduce(sum, ReduceOp::sum)->wait(); });
  return sum[0] / world_size();
}

std::vector<double> Runtime::all_gather(std::span<const double> values) {
  return guarded(state_->groups, [&] { return gather_figures(*state_, values); });
}

void Runtime::barrier() {
  state_->groups.world->barrier()->wait();
}

void Runtime::save(const std::string& directory, const Model& model, const Optimizer& optimizer,
                   const ProgramState& program) {
  model.state_->finalize();
  guarded(state_->groups, [&] {
    checkpoint::save_checkpoint(*model.state_, *optimizer.state_, directory, program);
  });
}

ProgramState Runtime::load(const std::string& directory, Model& model, Optimizer& optimizer) {
  model.state_->finalize();
  return guarded(state_->groups, [&] {
    return checkpoint::load_checkpoint(*model.state_, *optimizer.state_, directory);
  });
}

}  // namespace acc
