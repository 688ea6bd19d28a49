// SPDX-License-Identifier: Apache-2.0
#include "sharding/schedule.hpp"

#include <algorithm>
#include <utility>

namespace acc::sharding {
namespace {

using settings::BackwardPrefetch;

bool holds(const std::vector<int>& order, int unit) {
  return std::find(order.begin(), order.end(), unit) != order.end();
}

}  // namespace

// `uses_[0, position_)` is what this iteration has done. While `follows_`, the rest of `uses_` is
// what the last iteration did next; otherwise the rest is cut off and recorded again.
void ExecutionOrder::use(int unit) {
  follows_ = follows_ && position_ < uses_.size() && uses_[position_] == unit;
  if (!follows_) {
    uses_.resize(position_);
    uses_.push_back(unit);
  }
  ++position_;
}

void ExecutionOrder::end_iteration() {
  if (position_ == 0) {
    return;
  }
  uses_.resize(position_);  // this iteration may have been shorter than the recorded one
  position_ = 0;
  follows_ = true;
}

std::span<const int> ExecutionOrder::ahead() const noexcept {
  return follows_ ? std::span(uses_).subspan(position_) : std::span<const int>{};
}

ScheduleRules schedule_rules(const settings::ShardingSettings& settings,
                             const settings::StrategySwitches& on, bool gathers_copy) {
  return {.backward = settings.backward_prefetch,
          .forward = settings.forward_prefetch || gathers_copy,
          .reshard_after_forward = on.reshard_after_forward,
          // FSDP 2 keeps the root gathered unless reshard_after_forward is set, as by a size.
          .reshard_root = settings.reshard_size > 1,
          .prefetch_bucket = settings.prefetch_bucket_size,
          .max_live = settings.max_live_parameters,
          .max_reuse_distance = settings.max_reuse_distance};
}

int Schedule::add_unit(ScheduledUnit unit) {
  units_.push_back({.facts = unit});
  return static_cast<int>(units_.size()) - 1;
}

void Schedule::gathered(int unit) {
  Entry& entry = at(unit);
  if (!entry.live) {
    live_ += entry.facts.numel;
    entry.live = true;
    entry.early = true;  // until a scope of the unit begins
  }
}

void Schedule::freed(int unit) {
  Entry& entry = at(unit);
  live_ -= entry.live ? entry.facts.numel : 0;
  entry.live = false;
}

void Schedule::begin_use(int unit) {
  at(unit).early = false;
  trace_.use(unit);
}

std::vector<int> Schedule::before_forward(int unit) {
  if (awaiting_ == 0) {  // a new micro-step begins
    trace_.end_iteration();
  }
  at(unit).uses.begin_forward();
  ++awaiting_;
  begin_use(unit);
  const bool known = holds(forward_, unit);
  if (!known) {
    forward_.push_back(unit);
  }
  if (rules_.prefetch_bucket > 0) {
    return next_in_trace();
  }
  return known && rules_.forward ? next_of(forward_, unit) : std::vector<int>{};
}

void Schedule::after_forward(int unit) {
  // The order of the backward is not known before it happens; autograd runs it in the reverse order
  // in which forwards ended. A unit that is used twice counts with its first use.
  if (!holds(backward_, unit)) {
    backward_.insert(backward_.begin(), unit);
  }
}

std::vector<int> Schedule::begin_backward(int unit) {
  if (rules_.prefetch_bucket > 0) {
    return next_in_trace();
  }
  return rules_.backward == BackwardPrefetch::backward_pre ? next_backward(unit)
                                                           : std::vector<int>{};
}

std::vector<int> Schedule::before_recompute(int unit) {
  begin_use(unit);
  awaiting_ += at(unit).uses.begin_recompute() ? 1 : 0;
  at(unit).recomputed = true;
  return begin_backward(unit);
}

std::vector<int> Schedule::before_backward(int unit) {
  // A recomputation has already counted as the use that begins this backward.
  if (!std::exchange(at(unit).recomputed, false)) {
    begin_use(unit);
  }
  at(unit).uses.begin_backward();
  return begin_backward(unit);
}

void Schedule::end_backward(int unit) {
  awaiting_ -= at(unit).uses.end_backward() ? 1 : 0;
  at(unit).recomputed = false;  // the recomputation may have run inside the backward scope
}

std::vector<int> Schedule::after_backward(int unit) {
  const bool post =
      rules_.prefetch_bucket == 0 && rules_.backward == BackwardPrefetch::backward_post;
  return post ? next_backward(unit) : std::vector<int>{};
}

void Schedule::after_step() {
  trace_.end_iteration();
  awaiting_ = 0;
  for (Entry& entry : units_) {
    entry.uses = {};
    entry.recomputed = false;
  }
}

void Schedule::restart() {
  Schedule fresh(rules_);
  for (const Entry& each : units_) {
    fresh.add_unit(each.facts);
  }
  *this = std::move(fresh);
}

void Schedule::drop_gradients() {
  for (Entry& entry : units_) {
    entry.uses.drop();
  }
}

void Schedule::forget_forwards() {
  awaiting_ = 0;
  for (Entry& entry : units_) {
    entry.uses.forget_forwards();
  }
}

/// The unit after `unit` in `order`, if it is not gathered and fits into `max_live`. Prefetching
/// one unit ahead keeps at most two units gathered, besides the root.
std::vector<int> Schedule::next_of(const Order& order, int unit) const {
  const auto found = std::find(order.begin(), order.end(), unit);
  if (found == order.end() || std::next(found) == order.end()) {
    return {};
  }
  const int next = *std::next(found);
  const Entry& entry = at(next);
  const bool fits = entry.facts.numel <= rules_.max_live - live_;
  return entry.live || !fits ? std::vector<int>{} : std::vector<int>{next};
}

/// The next unit whose backward is still due. A unit after the root in `backward_` may have had its
/// backward already, because the root's scope surrounds the others.
std::vector<int> Schedule::next_backward(int unit) const {
  std::vector<int> next = next_of(backward_, unit);
  const bool is_due = !next.empty() && at(next.front()).uses.awaiting > 0;
  return is_due ? next : std::vector<int>{};
}

/// DeepSpeed's prefetch: walks along the rest of the recorded execution order until
/// `prefetch_bucket` elements are gathered for uses that have not begun. Units that are gathered
/// early already count; units in use do not.
std::vector<int> Schedule::next_in_trace() const {
  std::vector<int> next;
  std::vector<bool> seen(units_.size(), false);
  std::int64_t ahead = 0;
  std::int64_t live = live_;
  for (const int unit : trace_.ahead()) {
    if (ahead >= rules_.prefetch_bucket) {
      break;
    }
    const Entry& entry = at(unit);
    if (seen[static_cast<std::size_t>(unit)] || (entry.live && !entry.early)) {
      continue;
    }
    seen[static_cast<std::size_t>(unit)] = true;
    if (!entry.live) {
      if (entry.facts.numel > rules_.max_live - live) {
        break;
      }
      live += entry.facts.numel;
      next.push_back(unit);
    }
    ahead += entry.facts.numel;
  }
  return next;
}

/// True if the recorded execution order uses the unit again before `max_reuse_distance` elements of
/// other units.
bool Schedule::is_used_soon(int unit) const {
  std::int64_t distance = 0;
  for (const int next : trace_.ahead()) {
    if (distance >= rules_.max_reuse_distance) {
      return false;
    }
    if (next == unit) {
      return true;
    }
    distance += at(next).facts.numel;
  }
  return false;
}

bool Schedule::frees_after_forward(int unit) const {
  const bool spared = at(unit).facts.is_root && !rules_.reshard_root;
  const bool stays = !rules_.reshard_after_forward || spared || is_used_soon(unit);
  return !stays || live_ > rules_.max_live;
}

bool Schedule::frees_after_backward(int unit) const {
  return !is_used_soon(unit) || live_ > rules_.max_live;
}

}  // namespace acc::sharding
