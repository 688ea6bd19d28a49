// SPDX-License-Identifier: Apache-2.0
// The scopes of a sharded unit. Scopes of one unit may nest or repeat (a unit that is used twice):
// the weights are gathered by the first scope and freed when the last open one has ended.
#include "sharding/shard_unit.hpp"

#include "acc/base/error.hpp"
#include "flight/recorder.hpp"

#include <fmt/format.h>

#include <utility>

namespace acc::sharding {

ShardUnit::ShardUnit(const Context& context, Pools& pools, Counters& counters, Schedule& schedule,
                     const std::string& name, bool is_root,
                     const std::vector<ParameterRecord>& parameters)
    : context_(context),
      pools_(pools),
      counters_(counters),
      schedule_(schedule),
      name_(unit_label(name)),
      is_root_(is_root),
      places_(parameters.size()) {
  ScheduledUnit scheduled{.is_root = is_root};
  for (const FlatPlan& plan : plan_flats(parameters, context_.settings.sharding, context_.on,
                                         context_.groups.shard->size(), context_.by_rows)) {
    std::vector<ParameterRecord> members;
    for (const std::size_t index : plan.members) {
      members.push_back(parameters[index]);
    }
    flats_.push_back(std::make_unique<FlatParameter>(context_, pools, counters, name_,
                                                     std::move(members), plan.traits));
    for (std::size_t k = 0; k < plan.members.size(); ++k) {
      places_[plan.members[k]] = {flats_.back().get(), k};
    }
    // Persistent and ignored parameters are never freed, so the schedule does not count them.
    const bool is_freed = !plan.traits.persistent && !plan.traits.ignored;
    scheduled.numel += is_freed ? flats_.back()->layout().numel : 0;
  }
  number_ = schedule_.add_unit(scheduled);
}

void ShardUnit::begin_unshard() {
  if (!schedule_.is_gathered(number_)) {
    schedule_.gathered(number_);
    for (const auto& flat : flats_) {
      flat->begin_unshard();
    }
  }
}

void ShardUnit::unshard() {
  begin_unshard();
  for (const auto& flat : flats_) {
    flat->unshard();
  }
}

void ShardUnit::reshard(NextUse next) {
  for (const auto& flat : flats_) {
    flat->reshard(next);
  }
  schedule_.freed(number_);
}

void ShardUnit::hide() {
  for (const auto& flat : flats_) {
    flat->hide();
  }
}

void ShardUnit::abandon() {
  trace_end();
  --open_;
}

void ShardUnit::prefetch() {
  const flight::Scope scope(context_.groups.recorder.get(), "prefetch", name_);
  begin_unshard();
}

void ShardUnit::check_forward() const {
  if (context_.by_rows) {
    return;
  }
  const int micro_steps = context_.settings.sharding.micro_steps();
  if (counters_.no_grad_depth == 0 && !uses().begins && uses().micro_steps >= micro_steps) {
    throw Error(
        Errc::invalid_argument,
        fmt::format(
            "unit '{}' begins micro-step {}, but gradient_accumulation_steps is {}: call "
            "optimizer.step() first, or optimizer.zero_grad() to drop the gradients. To accumulate "
            "more micro-steps, start with acclaunch --gradient_accumulation_steps {} (the key of "
            "that name in a configuration file, ACCELERATE_GRADIENT_ACCUMULATION_STEPS); gradients "
            "are then their mean. For several losses in a micro-step, run all forwards before the "
            "first backward. Evaluate under no_grad()",
            name_, uses().micro_steps + 1, micro_steps, uses().micro_steps + 1));
  }
}

// Under no_grad nothing is gathered early and the schedule learns nothing, because evaluation may
// use units in another order.
ShardUnit::Early ShardUnit::before_forward() {
  open("forward");
  return counters_.no_grad_depth == 0 ? schedule_.before_forward(number_) : Early{};
}

void ShardUnit::after_forward() {
  trace_end();
  leave("forward");
  if (counters_.no_grad_depth == 0) {
    schedule_.after_forward(number_);
  }
  --open_;
  if (open_ > 0) {
    return;
  }
  if (uses().awaiting == 0) {  // under no_grad: no backward follows
    reshard(NextUse::unknown);
  } else if (schedule_.frees_after_forward(number_)) {
    reshard(NextUse::backward);
  } else {
    hide();
  }
}

void ShardUnit::check_backward(const char* scope, bool autograd) const {
  if (autograd ? !uses().used : uses().awaiting == 0) {
    throw Error(Errc::invalid_argument,
                fmt::format("unit '{}': {} begins, but only 0 forward scopes outside no_grad() "
                            "since the last step or load await one",
                            name_, scope));
  }
}

ShardUnit::Early ShardUnit::before_recompute() {
  open("recompute");
  return schedule_.before_recompute(number_);
}

void ShardUnit::after_recompute() {
  trace_end();
  leave("recompute");
  --open_;
  if (open_ == 0) {
    hide();  // the weights stay gathered for the backward
  }
}

ShardUnit::Early ShardUnit::before_backward() {
  open("backward");
  prepared_ = false;
  return schedule_.before_backward(number_);
}

/// By rows, each parameter has a gradient of its own. The backwards of ranks may write them in
/// another order, or not all of them, so that all get their memory together: when the program asks
/// for the first one, or at the end of the backward. It is that of the unit before, whose
/// reductions began at the end of its backward.
void ShardUnit::prepare_gradients() {
  if (context_.by_rows && !std::exchange(prepared_, true)) {
    pools_.gradients.drain();
    for_each_gradient([](FlatGradient& gradient) { gradient.prepare(); });
  }
}

ShardUnit::Early ShardUnit::after_backward() {
  trace_end();
  prepare_gradients();
  for_each_gradient([](FlatGradient& gradient) { gradient.end_backward(); });
  --open_;
  schedule_.end_backward(number_);
  if (open_ == 0 && uses().awaiting == 0) {
    close_gradients();
  }
  if (open_ == 0) {
    hide();
  }
  leave("backward");
  return schedule_.after_backward(number_);
}

/// The flight record enters the scope before the gather, so that a failed gather is reported with
/// the unit that it was for. The trace enters after it, so that waiting is not shown as
/// computation.
void ShardUnit::open(const char* phase) {
  if (context_.groups.recorder) {
    context_.groups.recorder->enter(phase, name_);
  }
  unshard();
  ++open_;
  if (context_.tracer) {
    context_.tracer->enter("compute", fmt::format("{} {}", phase, name_));
  }
}

void ShardUnit::leave(const char* phase) {
  if (context_.groups.recorder) {
    context_.groups.recorder->leave(phase, name_);
  }
}

void ShardUnit::trace_end() {
  if (context_.tracer) {
    context_.tracer->leave();
  }
}

/// Usually the last backward of the micro-step has ended: first the reductions are issued, then the
/// weights are freed. BACKWARD_POST gathers the next unit after this (Schedule::after_backward),
/// so its gather comes behind these reductions. A unit without forwards outside of the backward has
/// begun no micro-step.
void ShardUnit::close_gradients() {
  const int wanted = context_.settings.sharding.micro_steps();
  const bool last = uses().micro_steps >= wanted || wanted == 1;
  context_.groups.shard->defer_posts(true);
  for_each_gradient([last](FlatGradient& gradient) { gradient.close(last); });
  context_.groups.shard->defer_posts(false);
  // As in FSDP, strategies that keep weights from forward to backward keep them under no_sync until
  // the micro-step that reduces.
  const bool stays = counters_.no_sync_depth > 0 && !context_.on.reshard_after_forward;
  if (!stays && schedule_.frees_after_backward(number_)) {
    reshard(last ? NextUse::unknown : NextUse::forward);
  }
}

const void* ShardUnit::parameter(std::size_t index) {
  const Place& at = places_[index];
  const auto offset = static_cast<std::size_t>(at.flat->layout().offsets[at.index]);
  return static_cast<const std::byte*>(at.flat->unshard()) +
         offset * nbytes_of(at.flat->layout().precision.viewed);
}

FlatGradient::Target ShardUnit::gradient(std::size_t index) {
  prepare_gradients();
  const Place& at = places_[index];
  FlatGradient* const gradient = at.flat->gradient();
  // A frozen parameter has no memory for a gradient; "written" lets callers skip the zero-fill.
  return gradient != nullptr ? gradient->target(at.index) : FlatGradient::Target{nullptr, true};
}

void ShardUnit::want_gradient(std::size_t index, bool wanted) {
  places_[index].flat->want_gradient(wanted);
}

void ShardUnit::hold_gradient(std::size_t index, bool held) {
  if (FlatGradient* const gradient = places_[index].flat->gradient()) {
    gradient->hold(held);
  }
}

void ShardUnit::for_each_gradient(const std::function<void(FlatGradient&)>& visit) {
  for (const auto& flat : flats_) {
    if (flat->trainable()) {
      visit(*flat->gradient());
    }
  }
}

void ShardUnit::check_closed(const char* what) const {
  if (open_ > 0) {
    throw Error(Errc::invalid_argument,
                fmt::format("{} inside an open scope of unit '{}'", what, name_));
  }
}

void ShardUnit::release(const char* what) {
  check_closed(what);
  if (schedule_.is_gathered(number_)) {
    reshard(NextUse::unknown);
  }
}

void ShardUnit::flush() {
  check_closed("Optimizer::step()");
  const flight::Scope scope(context_.groups.recorder.get(), "step", name_);
  for_each_gradient([](FlatGradient& gradient) { gradient.flush(); });
  release("Optimizer::step()");
}

void ShardUnit::after_step() {
  for_each_gradient([](FlatGradient& gradient) { gradient.forget(); });
}

void ShardUnit::renew() {
  check_closed("CheckpointSeries::rejoin()");
  for (const auto& flat : flats_) {
    flat->renew();
  }
}

void ShardUnit::drop_gradients() {
  for_each_gradient([](FlatGradient& gradient) { gradient.drop(); });
}

}  // namespace acc::sharding
