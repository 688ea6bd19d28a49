#pragma once

#include "acc/plugins/sharding_settings.hpp"

#include <vector>

namespace acc::sharding {

/// What the settings say about gathering early.
struct ScheduleRules {
  plugins::BackwardPrefetch backward = plugins::BackwardPrefetch::none;
  bool forward = false;  ///< gather the next unit of the forward early
};

/// Which unit is gathered when: learns the order of the units in the first micro-step and says from
/// then on what to gather early. Units are numbers. A pure object: calls in, decisions out; no
/// collective depends on anything else, so all ranks decide alike.
class Schedule {
 public:
  explicit Schedule(ScheduleRules rules) : rules_(rules) {}

  /// A scope of `unit` begins or ends; returned: units to gather early, in this order, those that
  /// are gathered already included.
  std::vector<int> before_forward(int unit);
  void after_forward(int unit);
  std::vector<int> before_backward(int unit);
  std::vector<int> after_backward(int unit);

 private:
  using Order = std::vector<int>;
  static std::vector<int> next_of(const Order& order, int unit);

  ScheduleRules rules_;
  Order forward_;   ///< units as their forward began, in the first micro-step
  Order backward_;  ///< the other way round, as their forward ended
};

}  // namespace acc::sharding
