// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/runtime/lr_schedule.hpp"
#include "acc/settings/training_settings.hpp"
#include "optim/update.hpp"

/// Translates `optimizer` and `scheduler` of the settings. Absent values have the defaults of the
/// optimizer or of DeepSpeed's schedule. Both functions throw
/// Error(config | not_supported) that names the key.
namespace acc::optim {

OptimizerSettings optimizer_of(const settings::OptimizerChoice& choice);
/// Returns empty functions if no schedule was chosen.
StepSchedule schedule_of(const settings::ScheduleChoice& choice);

}  // namespace acc::optim
