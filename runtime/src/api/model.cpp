#include "acc/runtime.hpp"
#include "api/guarded.hpp"
#include "checkpoint/model_files.hpp"
#include "model/model_state.hpp"
#include "optim/optimizer_state.hpp"

#include <utility>

namespace acc {

using detail::guarded;

Parameter Unit::parameter(std::string name, Shape shape, Initializer initializer,
                          ParameterOptions options) {
  return state_->add(std::move(name), std::move(shape), std::move(initializer), options);
}

void Unit::tie(std::string alias_full_name, Parameter parameter) {
  state_->tie(std::move(alias_full_name), parameter);
}

Buffer Unit::buffer(std::string name, Shape shape, Initializer initializer) {
  return state_->add_buffer(std::move(name), std::move(shape), std::move(initializer));
}

void* Unit::data(Buffer buffer) {
  guarded(state_->model->engine().groups, [&] { state_->model->finalize(); });
  return state_->buffer(buffer).values->data();
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

Optimizer Model::optimizer(const AdamW& settings, const std::vector<ParameterGroup>& groups) {
  return Optimizer(std::make_shared<detail::OptimizerState>(state_, settings, groups));
}

Optimizer Model::optimizer(const Sgd& settings, const std::vector<ParameterGroup>& groups) {
  return Optimizer(std::make_shared<detail::OptimizerState>(state_, settings, groups));
}

std::shared_ptr<void> Model::no_grad() {
  auto& depth = state_->engine().no_grad_depth;
  ++depth;
  return {nullptr, [state = state_, &depth](void*) { --depth; }};
}

DType Model::compute_dtype() const {
  return state_->engine().precision.viewed;
}
DType Model::buffer_dtype() const {
  return state_->engine().precision.buffers;
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

}  // namespace acc
