#include "optim/optimizer_state.hpp"

#include "flight/recorder.hpp"
#include "optim/update.hpp"
#include "sharding/gradient_offload.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace acc::detail {

using sharding::FlatParameter;
using sharding::Overlap;

namespace {

std::vector<device::UpdateRange> update_ranges(const FlatParameter& flat) {
  std::vector<device::UpdateRange> ranges;
  for (std::size_t i = 0; i < flat.parameters().size(); ++i) {
    const Overlap part = overlap(flat.layout(), i, flat.owned());
    if (part.numel > 0) {
      ranges.push_back({part.in_shard, part.numel, flat.parameters()[i].weight_decay});
    }
  }
  return ranges;
}

}  // namespace

OptimizerState::OptimizerState(std::shared_ptr<ModelState> model, OptimizerSettings settings,
                               const std::vector<ParameterGroup>& groups)
    : model_(std::move(model)), settings_(std::move(settings)) {
  static_cast<void>(groups);
  lr = std::visit([](const auto& each) { return each.lr; }, settings_);
  clip_norm = model_->engine().settings.sharding.gradient_clipping.value_or(0.0);
  model_->finalize();
  const auto& engine = model_->engine();
  const std::vector<std::string> kinds = moment_kinds();
  std::int64_t nbytes = 0;
  for (FlatParameter* flat : model_->flats()) {
    if (!flat->trainable()) {
      continue;
    }
    FlatState state{flat, {}, update_ranges(*flat)};
    for (const std::string& kind : kinds) {
      state.moments.push_back({kind, engine.allocate_state(flat->owned().numel, "moments")});
      nbytes += static_cast<std::int64_t>(state.moments.back().values->nbytes());
    }
    flats_.push_back(std::move(state));
  }
  model_->optimizer_nbytes = nbytes;
  squares_ = engine.updater->allocate(sizeof(double), "gradient norm");
  squares_here_ = engine.updater->allocate_host(sizeof(double), "gradient norm");
}

std::string OptimizerState::name() const {
  return std::holds_alternative<AdamW>(settings_) ? "adamw" : "sgd";
}

std::map<std::string, double> OptimizerState::hyper_parameters() const {
  if (const auto* adamw = std::get_if<AdamW>(&settings_)) {
    return {{"lr", lr},
            {"beta1", adamw->beta1},
            {"beta2", adamw->beta2},
            {"eps", adamw->eps},
            {"weight_decay", adamw->weight_decay}};
  }
  const auto& sgd = std::get<Sgd>(settings_);
  return {{"lr", lr}, {"momentum", sgd.momentum}, {"weight_decay", sgd.weight_decay}};
}

std::vector<std::string> OptimizerState::moment_kinds() const {
  if (std::holds_alternative<AdamW>(settings_)) {
    return {"exp_avg", "exp_avg_sq"};
  }
  return std::get<Sgd>(settings_).momentum != 0.0 ? std::vector<std::string>{"momentum"}
                                                  : std::vector<std::string>{};
}

StepInfo OptimizerState::step() {
  auto* const tracer = model_->engine().tracer.get();
  const trace::Scope scope(tracer, "compute", "optimizer", "step");
  const flight::Scope recorded(model_->engine().groups.recorder.get(), "step", "");
  finish_reductions();
  // The norm also parts the ranks' last reads of the old weights from the writes below.
  const double norm = global_norm();
  const double coefficient = optim::clip_coefficient(norm, clip_norm);
  ++steps;
  for (FlatState& state : flats_) {
    update(state, coefficient);
    state.flat->publish();
  }
  for (const auto& unit : model_->shard_units()) {
    unit->after_step();
  }
  if (tracer != nullptr) {
    tracer->flush();
  }
  return {.step = steps, .grad_norm = norm, .clip_coefficient = coefficient};
}

void OptimizerState::finish_reductions() {
  auto& engine = model_->engine();
  for (const auto& unit : model_->shard_units()) {
    unit->flush();
  }
  engine.gradients->drain();
  for (FlatState& state : flats_) {
    state.flat->settle();  // also a gather of the weights that nothing has waited for yet
  }
  if (engine.groups.replicate && engine.on.shard_gradients) {
    for (FlatState& state : flats_) {
      state.flat->gradient()->all_reduce_replicas();
    }
    for (FlatState& state : flats_) {
      state.flat->gradient()->wait_reduction();
    }
  }
  if (engine.offload_optimizer()) {
    for (FlatState& state : flats_) {
      state.flat->gradient()->bring();
    }
    engine.gradient_offload->drain();
    engine.await_compute();
  }
}

double OptimizerState::global_norm() {
  auto& engine = model_->engine();
  double squares = local_squares(false);
  // Over the shard group only: replicas hold the same shards, and unsharded gradients are whole.
  const trace::Scope scope(engine.tracer.get(), "wait", "for", "the norm of all ranks");
  std::array<double, 1> total = {squares};
  engine.groups.shard->all_reduce(total, ReduceOp::sum)->wait();
  squares = total[0];
  // Those of ignored modules are each rank's own; their mean makes one norm of all ranks.
  if (std::any_of(flats_.begin(), flats_.end(),
                  [](const FlatState& each) { return each.flat->ignored(); })) {
    total = {local_squares(true)};
    engine.groups.world->all_reduce(total, ReduceOp::sum)->wait();
    squares += total[0] / engine.groups.world->size();
  }
  return std::sqrt(squares);
}

double OptimizerState::local_squares(bool ignored) {
  device::Device& updater = *model_->engine().updater;
  updater.zero(squares_->data(), sizeof(double), updater.compute());
  for (const FlatState& state : flats_) {
    if (state.flat->ignored() != ignored) {
      continue;
    }
    updater.add_squared_norm(state.flat->gradient()->reduced(),
                             static_cast<std::size_t>(state.flat->owned().numel),
                             squares_->as<double>(), updater.compute());
  }
  updater.copy(squares_here_->data(), squares_->data(), sizeof(double), updater.compute());
  updater.record(updater.compute())->synchronize();
  return *squares_here_->as<double>();
}

void OptimizerState::update(FlatState& state, double grad_scale) {
  FlatParameter& flat = *state.flat;
  device::Device& updater = *model_->engine().updater;
  const auto moment = [&state](std::size_t index) {
    return index < state.moments.size() ? state.moments[index].values->as<float>() : nullptr;
  };
  const device::UpdateArrays arrays{.weights = flat.master(),
                                    .grads = flat.gradient()->reduced(),
                                    .first = moment(0),
                                    .second = moment(1),
                                    .rounded = flat.rounded(),
                                    .rounded_dtype = model_->engine().precision.gathered};
  if (auto* adamw = std::get_if<AdamW>(&settings_)) {
    adamw->lr = lr;
    updater.adamw(optim::adamw_coefficients(*adamw, steps, grad_scale), arrays, state.ranges,
                  updater.compute());
  } else {
    auto& sgd = std::get<Sgd>(settings_);
    sgd.lr = lr;
    updater.sgd(optim::sgd_coefficients(sgd, steps, grad_scale), arrays, state.ranges,
                updater.compute());
  }
}

}  // namespace acc::detail
