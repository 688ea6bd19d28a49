#pragma once

#include "acc/plugins/sharding_settings.hpp"
#include "sharding/use_trace.hpp"

#include <cstdint>
#include <vector>

namespace acc::sharding {

/// What the settings say about gathering early and about freeing. Counts are elements.
struct ScheduleRules {
  plugins::BackwardPrefetch backward = plugins::BackwardPrefetch::none;
  bool forward = false;               ///< gather the next unit of the forward early
  bool reshard_after_forward = true;  ///< units are freed between their forward and their backward
  bool reshard_root = false;          ///< … the root too
  std::int64_t prefetch_bucket = 0;   ///< gathered ahead; 0: one unit, as the first two say
  std::int64_t max_live = plugins::ShardingSettings::kUnbounded;
  std::int64_t max_reuse_distance = 0;
};

/// `runs_ahead`: the device computes behind the program, so that only a gather that was issued
/// before the unit in front of it overlaps with that.
ScheduleRules schedule_rules(const plugins::ShardingSettings& settings, bool runs_ahead);

/// What the schedule knows of a unit.
struct ScheduledUnit {
  std::int64_t numel = 0;  ///< that a gather brings and freeing gives back
  bool is_root = false;
};

/// Which unit is gathered and freed when. A pure object: what happens in, decisions out; they
/// depend on the rules, the units and the calls alone, so all ranks decide alike.
///
/// Gathering early, FSDP's way: backward_pre gathers, when a unit's backward begins, the one whose
/// backward is next (the reverse of the order in which forwards ended), backward_post when it has
/// ended; `forward` gathers, when a unit's forward begins, the one that followed it in the first
/// iteration. DeepSpeed's way, with a `prefetch_bucket`: from the second iteration on, when a scope
/// begins, the units after it in the trace, until so many elements are ahead; units are gathered
/// whole, so the last may exceed the bucket. Neither lets more than `max_live` elements be
/// gathered.
///
/// Freeing: a unit is freed after its forward where the rules say so, the root only where they say
/// so of it, and after its backward. It stays where the trace uses it again before
/// `max_reuse_distance` other elements. Whatever would stay is freed once more than `max_live`
/// elements are gathered.
class Schedule {
 public:
  explicit Schedule(ScheduleRules rules) : rules_(rules) {}
  /// The number by which the unit is called from then on: 0, 1, …
  int add_unit(ScheduledUnit unit);

  /// The unit is gathered, for a scope that begins or early; it is freed.
  void gathered(int unit);
  void freed(int unit);

  /// A scope begins, which has gathered its unit, or has ended. Returned: units that are not
  /// gathered and should be now, in this order.
  std::vector<int> before_forward(int unit);
  void after_forward(int unit);
  /// A forward that is computed again, for the backward of `unit`, which follows.
  std::vector<int> before_recompute(int unit);
  std::vector<int> before_backward(int unit);
  std::vector<int> after_backward(int unit);
  /// An optimizer step: an iteration is over. Else it is over when as many backwards have ended as
  /// forwards have begun.
  void after_step();

  /// Whether a unit is freed whose scope has ended, where a backward follows / after that.
  [[nodiscard]] bool frees_after_forward(int unit) const;
  [[nodiscard]] bool frees_after_backward(int unit) const;

 private:
  using Order = std::vector<int>;
  struct Entry {
    ScheduledUnit facts;
    bool live = false;
    bool early = false;       ///< gathered for a use that has not begun
    int owed = 0;             ///< forwards that have begun without their backward
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
  std::int64_t live_ = 0;  ///< elements gathered
  Order forward_;          ///< units as their forward began, in the first iteration
  Order backward_;         ///< the other way round, as their forward ended
  UseTrace trace_;
  int owed_ = 0;  ///< of all units
};

}  // namespace acc::sharding
