// SPDX-License-Identifier: Apache-2.0
// Units, models and optimizers of the C++ interface: thin functions over UnitState, ModelState and
// OptimizerState. Public objects hold only a pointer to the state, so copies are cheap and the ABI
// does not depend on the state.
#include "acc/runtime.hpp"
#include "api/mine.hpp"
#include "flight/recorder.hpp"
#include "model/declaration.hpp"
#include "model/model_state.hpp"
#include "optim/from_settings.hpp"
#include "optim/optimizer_state.hpp"

#include <fmt/format.h>

#include <optional>
#include <utility>

namespace acc {

using sharding::guarded;

Parameter Unit::parameter(std::string name, Shape shape, Initializer initializer,
                          ParameterOptions options) {
  return mine(state_).add(std::move(name), std::move(shape), std::move(initializer), options);
}

void Unit::tie(std::string alias_full_name, Parameter parameter) {
  mine(state_).tie(std::move(alias_full_name), parameter);
}

Buffer Unit::buffer(std::string name, Shape shape, Initializer initializer) {
  return buffer(std::move(name), std::move(shape), std::move(initializer),
                mine(state_).model->context().precision.buffers);
}

Buffer Unit::buffer(std::string name, Shape shape, Initializer initializer, DType dtype) {
  return mine(state_).add_buffer(std::move(name), std::move(shape), std::move(initializer), dtype);
}

void Unit::tie(std::string alias_full_name, Buffer buffer) {
  mine(state_).tie(std::move(alias_full_name), buffer);
}

void* Unit::data(Buffer buffer) {
  guarded(state_->model->context().groups, [&] { state_->model->finalize(); });
  return mine(state_).buffer(buffer).values->data();
}

bool Unit::keeps_addresses() const {
  return guarded(state_->model->context().groups,
                 [&] { return state_->model->keeps_addresses(*state_); });
}

void Unit::set_requires_grad(Parameter parameter, bool requires_grad) {
  guarded(state_->model->context().groups,
          [&] { mine(state_).set_requires_grad(parameter, requires_grad); });
}

void Unit::hold_gradients(bool held) {
  guarded(state_->model->context().groups, [&] {
    state_->model->finalize();
    mine(state_).hold_gradients(held);
  });
}

ForwardUse Unit::forward() {
  return ForwardUse(state_);
}
ForwardUse Unit::recompute() {
  return ForwardUse(state_, true);
}
BackwardUse Unit::backward() {
  return BackwardUse(state_);
}
const std::string& Unit::name() const {
  return state_->name;
}

Unit& Model::root(std::string name, std::string class_name) {
  return mine(state_).add_unit(std::move(name), std::move(class_name), true);
}

Unit& Model::unit(std::string name, std::string class_name) {
  return mine(state_).add_unit(std::move(name), std::move(class_name), false);
}

namespace {

std::shared_ptr<detail::OptimizerState> made(const std::shared_ptr<detail::ModelState>& model,
                                             const optim::OptimizerSettings& settings,
                                             const std::vector<ParameterGroup>& groups = {}) {
  return guarded(model->context().groups, [&] {
    model->finalize();
    const flight::Scope scope(model->context().groups.recorder.get(), "start", "");
    // A rank that refuses its arguments tells the others, which would wait for it.
    std::shared_ptr<detail::OptimizerState> optimizer;
    model::Declaration declared;
    std::optional<Error> refused;
    try {
      optimizer = make_own<detail::OptimizerState>(model, settings, groups);
      declared = optimizer->declaration();
    } catch (const Error& error) {
      refused = error;
      declared = {{"the optimizer", fmt::format("refused ({})", error.what())}};
    }
    try {
      if (optimizer) {
        optimizer->agree(declared);
      } else {
        model::check_declared_alike(model->context(), declared,
                                    "the ranks make different optimizers: ");
      }
    } catch (const Error&) {
      if (!refused) {
        throw;
      }
    }
    if (refused) {
      throw Error(*refused);
    }
    return optimizer;
  });
}

}  // namespace

Optimizer Model::optimizer(const NamedRule& settings, const std::vector<ParameterGroup>& groups) {
  return Optimizer(made(state_, settings, groups));
}

Optimizer Model::optimizer(const AdamW& settings, const std::vector<ParameterGroup>& groups) {
  return optimizer(optim::named(settings), groups);
}

Optimizer Model::optimizer(const Sgd& settings, const std::vector<ParameterGroup>& groups) {
  return optimizer(optim::named(settings), groups);
}

Optimizer Model::optimizer(const ProgramRule& rule) {
  if (!rule.update) {
    throw Error(Errc::invalid_argument, "ProgramRule::update must be set");
  }
  return Optimizer(made(state_, rule));
}

Optimizer Model::optimizer(const MatrixRule& rule, const std::vector<ParameterGroup>& groups) {
  if (!rule.update) {
    throw Error(Errc::invalid_argument, "MatrixRule::update must be set");
  }
  return Optimizer(made(state_, rule, groups));
}

Optimizer Model::optimizer_from_settings() {
  const settings::ShardingSettings& asked = mine(state_).context().settings.sharding;
  StepSchedule schedule = optim::schedule_of(asked.schedule);
  const optim::OptimizerSettings rule = optim::optimizer_of(asked.optimizer);
  guarded(state_->context().groups, [&] { state_->finalize(); });
  std::vector<sharding::ParameterRecord> trained;
  for (const sharding::FlatParameter* flat : state_->flats()) {
    if (flat->trainable()) {
      trained.insert(trained.end(), flat->parameters().begin(), flat->parameters().end());
    }
  }
  const auto groups = optim::groups_of(asked.optimizer, trained);
  if (!groups.empty()) {
    schedule.betas = {};  // DeepSpeed's OneCycle changes no momentum of its Muon
  }
  Optimizer optimizer(made(state_, rule, groups));
  if (schedule.lr) {
    optimizer.set_schedule(schedule);
  }
  return optimizer;
}

void Model::share(const std::string& name, void* data, std::size_t nbytes) {
  guarded(state_->context().groups, [&] { state_->share(name, data, nbytes); });
}

namespace {

/// Increments `depth` as long as the returned object lives. The object holds no value, only the
/// deleter; it keeps the model alive.
std::shared_ptr<void> raised(std::shared_ptr<detail::ModelState> state, int& depth) {
  ++depth;
  return {nullptr, [kept = std::move(state), &depth](void*) { --depth; }};
}

}  // namespace

std::shared_ptr<void> Model::no_grad() {
  return raised(state_, mine(state_).counters().no_grad_depth);
}
std::shared_ptr<void> Model::no_sync() {
  return raised(state_, mine(state_).counters().no_sync_depth);
}

void Model::zero_grad() {
  guarded(state_->context().groups, [&] { state_->drop_gradients(); });
}

std::vector<ParameterShard> Model::shards() {
  return guarded(state_->context().groups, [&] {
    state_->finalize();
    state_->check_host_weights();
    state_->late_copies.expose_weights(*state_->context().updater);
    return state_->shards(false);
  });
}

void Model::take_gradients(const ShardsVisit& visit) {
  guarded(state_->context().groups, [&] { state_->take_gradients(visit); });
}

void Model::publish() {
  guarded(state_->context().groups, [&] { state_->publish(); });
}

DType Model::compute_dtype() const {
  return mine(state_).context().precision.viewed;
}
DType Model::buffer_dtype() const {
  return mine(state_).context().precision.buffers;
}
std::int64_t Model::numel() const {
  return mine(state_).numel();
}
MemoryReport Model::memory() const {
  return mine(state_).memory();
}
TrafficReport Model::traffic() const {
  return mine(state_).traffic();
}
void Model::reset_traffic() {
  mine(state_).reset_traffic();
}

StepInfo Optimizer::step() {
  return mine(state_).result(mine(state_).step());
}

void Optimizer::zero_grad() {
  mine(state_).zero_grad();
}

struct IssuedStep::State {
  std::shared_ptr<detail::OptimizerState> optimizer;
  detail::OptimizerState::Issued step;
};

IssuedStep Optimizer::issue_step() {
  return IssuedStep(
      std::make_shared<IssuedStep::State>(IssuedStep::State{state_, mine(state_).step()}));
}

StepInfo IssuedStep::result() const {
  return mine(state_->optimizer).result(state_->step);
}
double Optimizer::loss_scale() const {
  return mine(state_).loss_scale();
}
void Optimizer::set_lr(double lr) {
  mine(state_).changeable_rates().set_lr(0, lr);
}
void Optimizer::set_lr(const std::string& group, double lr) {
  mine(state_).changeable_rates().set_lr(mine(state_).rates().index(group), lr);
}
double Optimizer::lr() const {
  return mine(state_).lr(0);
}
double Optimizer::lr(const std::string& group) const {
  return mine(state_).lr(mine(state_).rates().index(group));
}
void Optimizer::set_schedule(LrSchedule schedule) {
  set_schedule(StepSchedule{std::move(schedule)});
}
void Optimizer::set_schedule(StepSchedule schedule) {
  mine(state_).changeable_rates().set_schedule(std::move(schedule), mine(state_).steps);
}
void Optimizer::set_clip_norm(double max_norm) {
  mine(state_).set_clip_norm(max_norm);
}
double Optimizer::clip_norm() const {
  return mine(state_).clip_norm();
}
void Optimizer::set_clip_value(double max_value) {
  mine(state_).set_clip_value(max_value);
}
double Optimizer::clip_value() const {
  return mine(state_).clip_value();
}
std::int64_t Optimizer::steps() const {
  return mine(state_).steps;
}
std::vector<ParameterShard> Optimizer::shards() const {
  mine(state_).model().check_host_weights();
  return mine(state_).shards_for_program();
}

}  // namespace acc
