// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/settings/strategy.hpp"
#include "sharding/unit_uses.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace acc::sharding {

/// The execution order: the sequence in which an iteration uses its units. It is recorded in the
/// first iteration and then followed (like DeepSpeed's parameter coordinator). If a use differs
/// from the recorded one, the record is not followed for the rest of that iteration, which is
/// recorded instead.
class ExecutionOrder {
 public:
  void use(int unit);
  void end_iteration();
  /// Remaining uses of this iteration according to the record; empty while recording.
  [[nodiscard]] std::span<const int> ahead() const noexcept;

 private:
  std::vector<int> uses_;
  std::size_t position_ = 0;  ///< number of uses in this iteration so far
  bool follows_ = false;      ///< `uses_` is a whole iteration, and this one agrees with it so far
};

/// Settings about early gathers and freeing. Counts are elements.
struct ScheduleRules {
  settings::BackwardPrefetch backward = settings::BackwardPrefetch::none;
  bool forward = false;               ///< gather the next unit of the forward early
  bool reshard_after_forward = true;  ///< free units between their forward and their backward
  bool reshard_root = false;          ///< free the root as well
  std::int64_t prefetch_bucket = 0;   ///< elements gathered ahead; 0: one unit (first two fields)
  std::int64_t max_live = settings::ShardingSettings::kUnbounded;
  std::int64_t max_reuse_distance = 0;
};

/// gathers_copy: a gather moves bytes between devices or machines. Forward prefetch is then always
/// on: a gather overlaps with the computation of a unit only if it is issued before that
/// computation.
ScheduleRules schedule_rules(const settings::ShardingSettings& settings,
                             const settings::StrategySwitches& on, bool gathers_copy);

/// Properties of a unit that the schedule uses.
struct ScheduledUnit {
  std::int64_t numel = 0;  ///< elements that a gather adds and freeing removes
  bool is_root = false;
};

/// Keeps the uses of all sharded units and which of them are gathered, and decides which unit is
/// gathered early and which is freed. It has no side effects: the caller reports the beginning and
/// end of scopes and gathers, and executes the decisions. They depend
/// only on the rules, the units and the order of calls, so all ranks decide alike without
/// communication.
///
/// Early gathers of FSDP (arXiv 2304.11277, sections 3.3.2 and 3.3.3): backward_pre gathers, when a
/// unit's backward begins, the unit whose backward is next (the reverse of the order in which
/// forwards ended); backward_post does so when the backward has ended; `forward` gathers, when a
/// unit's forward begins, the unit that followed it in the first iteration. Early gathers of
/// DeepSpeed, with a `prefetch_bucket`: from the second iteration on, when a scope begins, the
/// units after it in the recorded execution order are gathered until `prefetch_bucket` elements are
/// ahead. Units are gathered whole, so the last one may exceed the bucket. An early gather never
/// makes more than `max_live` elements gathered.
///
/// Freeing: a unit is freed after its forward if `reshard_after_forward` (the root only with
/// `reshard_root`), and after its backward. It is kept if the recorded execution order uses it
/// again before `max_reuse_distance` other elements. A unit that would be kept is freed if more
/// than `max_live` elements are gathered.
///
/// An iteration is a micro-step: it ends when as many backwards have ended as forwards have begun,
/// or with an optimizer step.
class Schedule {
 public:
  explicit Schedule(ScheduleRules rules) : rules_(rules) {}
  /// Returns the number of the unit for later calls: 0, 1, …
  int add_unit(ScheduledUnit unit);

  /// Reports that the gather of a unit was issued, for a scope that begins or early.
  void gathered(int unit);
  /// Reports that a unit was freed.
  void freed(int unit);

  [[nodiscard]] bool is_gathered(int unit) const { return at(unit).live; }

  /// Report that a scope begins (its unit is gathered already) or has ended. Return the units that
  /// should be gathered now, in this order; none of them is gathered yet. Forwards under no_grad
  /// are not reported.
  std::vector<int> before_forward(int unit);
  void after_forward(int unit);
  /// A forward that is computed again for the backward of `unit`, which follows.
  std::vector<int> before_recompute(int unit);
  std::vector<int> before_backward(int unit);
  void end_backward(int unit);
  /// After `end_backward`, when the unit has been freed or kept.
  std::vector<int> after_backward(int unit);
  /// Reports an optimizer step, which ends the iteration.
  void after_step();
  /// Reports that the gradients since the last step were dropped.
  void drop_gradients();
  /// Reports that the weights were replaced: no forward has a backward any more.
  void forget_forwards();
  /// Forgets everything but the units, as at the start.
  void restart();
  [[nodiscard]] const UnitUses& uses(int unit) const { return at(unit).uses; }

  /// True if a unit whose scope has ended is freed; a backward follows the first scope.
  [[nodiscard]] bool frees_after_forward(int unit) const;
  [[nodiscard]] bool frees_after_backward(int unit) const;

 private:
  using Order = std::vector<int>;
  struct Entry {
    ScheduledUnit facts;
    bool live = false;
    bool early = false;  ///< gathered for a scope that has not begun
    UnitUses uses = {};
    bool recomputed = false;  ///< its backward has begun with a recomputation
  };

  Entry& at(int unit) { return units_[static_cast<std::size_t>(unit)]; }
  [[nodiscard]] const Entry& at(int unit) const { return units_[static_cast<std::size_t>(unit)]; }
  void begin_use(int unit);
  std::vector<int> begin_backward(int unit);
  [[nodiscard]] std::vector<int> next_of(const Order& order, int unit) const;
  [[nodiscard]] std::vector<int> next_backward(int unit) const;
  [[nodiscard]] std::vector<int> next_in_trace() const;
  [[nodiscard]] bool is_used_soon(int unit) const;

  ScheduleRules rules_;
  std::vector<Entry> units_;
  std::int64_t live_ = 0;  ///< elements that are gathered now
  int awaiting_ = 0;       ///< forwards of all units whose backward has not ended
  Order forward_;          ///< units in the order in which their first forwards began
  Order backward_;         ///< units in the reverse order in which their first forwards ended
  ExecutionOrder trace_;
};

}  // namespace acc::sharding
