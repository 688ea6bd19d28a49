// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/runtime/lr_schedule.hpp"
#include "acc/settings/training_settings.hpp"
#include "optim/update.hpp"
#include "sharding/flat_plan.hpp"

#include <span>
#include <vector>

/// Translates `optimizer` and `scheduler` of the settings. Absent values have the defaults of the
/// optimizer or of DeepSpeed's schedule. The functions throw
/// Error(config | not_supported) that names the key.
namespace acc::optim {

OptimizerSettings optimizer_of(const settings::OptimizerChoice& choice);
/// Returns the parameter groups of the optimizer: for Muon, one of the parameters that DeepSpeed
/// updates by Adam (set_optimizer_flags of DeepSpeed 0.19.8). trained: all trained parameters.
std::vector<ParameterGroup> groups_of(const settings::OptimizerChoice& choice,
                                      std::span<const sharding::ParameterRecord> trained);
/// Returns empty functions if no schedule was chosen.
StepSchedule schedule_of(const settings::ScheduleChoice& choice);

}  // namespace acc::optim
