// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/runtime/lr_schedule.hpp"
#include "acc/runtime/optimizers.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace acc::optim {

/// Learning rate and weight decay of each group of an optimizer. Group 0 contains the parameters
/// that no group names; its name is empty.
class GroupTable {
 public:
  /// lr, weight_decay: of the optimizer. Throws Error(invalid_argument) for a group without a name,
  /// for two groups with the same name, and for a rate that is negative or not finite.
  GroupTable(double lr, double weight_decay, std::span<const ParameterGroup> groups);

  [[nodiscard]] std::size_t size() const noexcept { return groups_.size(); }
  /// Returns the number of the named group. Throws Error(not_found) for an unknown name.
  [[nodiscard]] std::size_t index(const std::string& name) const;
  [[nodiscard]] const std::string& name(std::size_t group) const { return groups_[group].name; }
  [[nodiscard]] double weight_decay(std::size_t group) const { return groups_[group].weight_decay; }
  [[nodiscard]] bool matrices(std::size_t group) const { return groups_[group].matrices; }

  [[nodiscard]] double base_lr(std::size_t group) const { return groups_[group].base_lr; }
  [[nodiscard]] bool has_schedule() const { return static_cast<bool>(schedule_.lr); }

  /// Returns the learning rate of the step that follows `steps` others. Throws what the schedule
  /// throws, and Error(invalid_argument) if its rate is negative or not finite.
  [[nodiscard]] double lr(std::size_t group, std::int64_t steps) const;
  /// The same of all groups.
  [[nodiscard]] std::vector<double> all_lr(std::int64_t steps) const;
  /// Ends the schedule of that group. Throws Error(invalid_argument) for a rate that is negative or
  /// not finite.
  void set_lr(std::size_t group, double lr);
  /// Makes all groups follow `schedule`. An empty `lr` ends the schedule, and the rates stay as
  /// they are after `steps` steps.
  void set_schedule(StepSchedule schedule, std::int64_t steps);
  /// Returns the betas of the step that follows `steps` others, if the schedule has them. Throws
  /// Error(invalid_argument) if they are not from 0 to 1 (excluded).
  [[nodiscard]] std::optional<std::array<double, 2>> betas(std::int64_t steps) const;

 private:
  struct Group {
    std::string name;
    double base_lr;  ///< the rate with which the group was made
    double lr;       ///< the rate if the group follows no schedule
    double weight_decay;
    bool matrices = true;  ///< ParameterGroup::matrices
    bool scheduled = false;
  };
  std::vector<Group> groups_;
  StepSchedule schedule_;
};

/// Returns the group number of each parameter. names: for each parameter its name, then the names
/// tied to it. Throws Error(invalid_argument) if a name of a group matches no parameter, and if two
/// groups name the same parameter.
std::vector<std::size_t> assign_groups(std::span<const std::vector<std::string>> names,
                                       std::span<const ParameterGroup> groups);

}  // namespace acc::optim
