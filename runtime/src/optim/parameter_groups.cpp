// SPDX-License-Identifier: Apache-2.0
#include "optim/parameter_groups.hpp"

#include "acc/base/error.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace acc::optim {
namespace {

void check_rate(const char* what, const std::string& group, double value) {
  if (!(value >= 0.0 && std::isfinite(value))) {  // also true for NaN
    throw Error(Errc::invalid_argument,
                fmt::format("{}{}: expected a finite number of at least 0, found {}",
                            group.empty() ? "" : fmt::format("parameter group '{}', ", group), what,
                            value));
  }
}

/// True if `pattern` equals the name or, if it ends in `*`, is a prefix of it.
bool fits(const std::string& pattern, const std::string& name) {
  return pattern.ends_with('*')
             ? name.starts_with(std::string_view(pattern).substr(0, pattern.size() - 1))
             : name == pattern;
}

}  // namespace

GroupTable::GroupTable(double lr, double weight_decay, std::span<const ParameterGroup> groups) {
  groups_.push_back({.name = "", .base_lr = lr, .lr = lr, .weight_decay = weight_decay});
  for (const ParameterGroup& group : groups) {
    if (group.name.empty()) {
      throw Error(Errc::invalid_argument,
                  fmt::format("parameter group number {} has no name", size()));
    }
    if (std::any_of(groups_.begin(), groups_.end(),
                    [&](const Group& each) { return each.name == group.name; })) {
      throw Error(Errc::invalid_argument,
                  fmt::format("two parameter groups are named '{}'", group.name));
    }
    const double own_lr = group.lr.value_or(lr);
    groups_.push_back({.name = group.name,
                       .base_lr = own_lr,
                       .lr = own_lr,
                       .weight_decay = group.weight_decay.value_or(weight_decay),
                       .matrices = group.matrices});
  }
  for (const Group& group : groups_) {
    check_rate("lr", group.name, group.base_lr);
    check_rate("weight_decay", group.name, group.weight_decay);
  }
}

std::size_t GroupTable::index(const std::string& name) const {
  for (std::size_t i = 1; i < groups_.size(); ++i) {
    if (groups_[i].name == name) {
      return i;
    }
  }
  std::vector<std::string> known;
  for (std::size_t i = 1; i < groups_.size(); ++i) {
    known.push_back(groups_[i].name);
  }
  throw Error(
      Errc::not_found,
      fmt::format("no parameter group is named '{}'; there {}", name,
                  known.empty() ? "is none" : fmt::format("are {}", fmt::join(known, ", "))));
}

double GroupTable::lr(std::size_t group, std::int64_t steps) const {
  const Group& found = groups_[group];
  if (!found.scheduled) {
    return found.lr;
  }
  const double rate = schedule_.lr(steps, found.base_lr);
  check_rate(fmt::format("the learning rate of the schedule after {} steps", steps).c_str(),
             found.name, rate);
  return rate;
}

std::vector<double> GroupTable::all_lr(std::int64_t steps) const {
  std::vector<double> all;
  for (std::size_t group = 0; group < size(); ++group) {
    all.push_back(lr(group, steps));
  }
  return all;
}

void GroupTable::set_lr(std::size_t group, double lr) {
  check_rate("lr", groups_[group].name, lr);
  groups_[group].lr = lr;
  groups_[group].scheduled = false;
}

void GroupTable::set_schedule(StepSchedule schedule, std::int64_t steps) {
  if (!schedule.lr) {  // rates of the old schedule become fixed rates
    const std::vector<double> rates = all_lr(steps);
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      groups_[i].lr = rates[i];
    }
  }
  schedule_ = std::move(schedule);
  for (Group& group : groups_) {
    group.scheduled = has_schedule();
  }
}

std::optional<std::array<double, 2>> GroupTable::betas(std::int64_t steps) const {
  if (!schedule_.betas) {
    return std::nullopt;
  }
  const std::array<double, 2> found = schedule_.betas(steps);
  for (const double each : found) {
    if (!(each >= 0.0 && each < 1.0)) {
      throw Error(
          Errc::invalid_argument,
          fmt::format("a beta of the schedule after {} steps: expected a number from 0 to 1 "
                      "(excluded), found {}",
                      steps, each));
    }
  }
  return found;
}

std::vector<std::size_t> assign_groups(std::span<const std::vector<std::string>> names,
                                       std::span<const ParameterGroup> groups) {
  std::vector<std::size_t> result(names.size(), 0);
  // A parameter may match several patterns of one group, but not two groups.
  const auto claim = [&](std::size_t parameter, std::size_t group) {
    const std::size_t before = std::exchange(result[parameter], group);
    if (before != 0 && before != group) {
      throw Error(
          Errc::invalid_argument,
          fmt::format("parameter {} is in two parameter groups, '{}' and '{}'",
                      names[parameter].front(), groups[before - 1].name, groups[group - 1].name));
    }
  };
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].parameters.empty()) {
      throw Error(Errc::invalid_argument,
                  fmt::format("parameter group '{}' names no parameters", groups[g].name));
    }
    for (const std::string& pattern : groups[g].parameters) {
      bool found = false;
      for (std::size_t p = 0; p < names.size(); ++p) {
        if (std::any_of(names[p].begin(), names[p].end(),
                        [&](const std::string& name) { return fits(pattern, name); })) {
          claim(p, g + 1);
          found = true;
        }
      }
      if (!found) {
        throw Error(Errc::invalid_argument,
                    fmt::format("parameter group '{}': no parameter of this model is named '{}'",
                                groups[g].name, pattern));
      }
    }
  }
  return result;
}

}  // namespace acc::optim
