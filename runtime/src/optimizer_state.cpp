#include "optimizer_state.hpp"

#include "kernels/kernels.hpp"
#include "optim/update.hpp"

#include <array>
#include <cmath>

namespace acc::detail {

using sharding::FlatParameter;
using sharding::Overlap;

OptimizerState::OptimizerState(std::shared_ptr<ModelState> model, OptimizerSettings settings)
    : model_(std::move(model)), settings_(std::move(settings)) {
  lr = std::visit([](const auto& each) { return each.lr; }, settings_);
  clip_norm = model_->engine().settings.sharding.gradient_clipping.value_or(0.0);
  model_->finalize();
  const std::vector<std::string> kinds = moment_kinds();
  std::int64_t nbytes = 0;
  for (FlatParameter* flat : model_->flats()) {
    if (!flat->trainable()) {
      continue;
    }
    FlatState state{flat, {}};
    for (const std::string& kind : kinds) {
      const auto numel = static_cast<std::size_t>(flat->owned().numel);
      state.moments.push_back({kind, std::vector<float>(numel)});
      nbytes += static_cast<std::int64_t>(numel * sizeof(float));
    }
    flats_.push_back(std::move(state));
  }
  model_->optimizer_nbytes = nbytes;
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
  auto& engine = model_->engine();
  for (const auto& unit : model_->shard_units()) {
    unit->flush();
  }
  engine.gradients->drain();
  for (FlatState& state : flats_) {
    state.flat->wait_reduction();
  }
  if (engine.groups.replicate && engine.on.shard_gradients) {
    std::vector<collectives::WorkPtr> works;
    for (FlatState& state : flats_) {
      works.push_back(state.flat->all_reduce_replicas());
    }
    for (const auto& work : works) {
      work->wait_released();
    }
  }
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
  return {.step = steps, .grad_norm = norm, .clip_coefficient = coefficient};
}

double OptimizerState::global_norm() {
  auto& engine = model_->engine();
  double squares = 0.0;
  for (const FlatState& state : flats_) {
    squares += kernels::kernels().squared_norm(state.flat->reduced_gradient(),
                                               static_cast<std::size_t>(state.flat->owned().numel));
  }
  // Over the shard group only: replicas hold the same shards, and unsharded gradients are whole.
  std::array<double, 1> total = {squares};
  engine.groups.shard->all_reduce(total, ReduceOp::sum)->wait();
  return std::sqrt(total[0]);
}

void OptimizerState::update(FlatState& state, double grad_scale) {
  FlatParameter& flat = *state.flat;
  for (std::size_t i = 0; i < flat.parameters().size(); ++i) {
    const Overlap part = overlap(flat.layout(), i, flat.owned());
    if (part.numel == 0) {
      continue;
    }
    const auto at = [&part](auto* base) { return base == nullptr ? base : base + part.in_shard; };
    const auto numel = static_cast<std::size_t>(part.numel);
    const bool decays = flat.parameters()[i].weight_decay;
    float* const weights = at(flat.master());
    const float* const grads = at(flat.reduced_gradient());
    std::uint16_t* const low = at(flat.low_precision());
    if (auto* adamw = std::get_if<AdamW>(&settings_)) {
      adamw->lr = lr;
      kernels::kernels().adamw(optim::adamw_coefficients(*adamw, steps, grad_scale, decays),
                               weights, grads, at(state.moments[0].values.data()),
                               at(state.moments[1].values.data()), low, numel);
    } else {
      auto& sgd = std::get<Sgd>(settings_);
      sgd.lr = lr;
      float* const velocity = state.moments.empty() ? nullptr : at(state.moments[0].values.data());
      kernels::kernels().sgd(optim::sgd_coefficients(sgd, steps, grad_scale, decays), weights,
                             grads, velocity, low, numel);
    }
  }
}

}  // namespace acc::detail
