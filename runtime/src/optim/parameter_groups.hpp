#pragma once

#include "acc/runtime/lr_schedule.hpp"
#include "acc/runtime/optimizers.hpp"

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace acc::optim {

/// What an optimizer has once for each of its groups. Group 0 is of the parameters that no group
/// names; its own name is empty.
class GroupTable {
 public:
  /// `lr`, `weight_decay`: of the optimizer. Throws Error(config) for a group without a name, with
  /// another's name, or with a rate that is negative or no number.
  GroupTable(double lr, double weight_decay, std::span<const ParameterGroup> groups);

  [[nodiscard]] std::size_t size() const noexcept { return groups_.size(); }
  /// Throws Error(config) for a name that no group has.
  [[nodiscard]] std::size_t index(const std::string& name) const;
  [[nodiscard]] const std::string& name(std::size_t group) const { return groups_[group].name; }
  [[nodiscard]] double weight_decay(std::size_t group) const { return groups_[group].weight_decay; }

  [[nodiscard]] double base_lr(std::size_t group) const { return groups_[group].base_lr; }
  [[nodiscard]] bool has_schedule() const { return static_cast<bool>(schedule_); }

  /// Of the step that follows on `steps` others.
  [[nodiscard]] double lr(std::size_t group, std::int64_t steps) const;
  /// Ends the schedule of that group.
  void set_lr(std::size_t group, double lr);
  /// From now on all groups follow it; an empty one ends the last, and rates stay.
  void set_schedule(LrSchedule schedule, std::int64_t steps);

 private:
  struct Group {
    std::string name;
    double base_lr;  ///< what it was made with
    double lr;       ///< where it follows no schedule
    double weight_decay;
    bool scheduled = false;
  };
  std::vector<Group> groups_;
  LrSchedule schedule_;
};

/// The group of each parameter. names: of each parameter its own name, then those tied to it.
/// Throws Error(config) for a group of which a name fits no parameter, and for a parameter that two
/// groups name.
std::vector<std::size_t> assign_groups(std::span<const std::vector<std::string>> names,
                                       std::span<const ParameterGroup> groups);

}  // namespace acc::optim
