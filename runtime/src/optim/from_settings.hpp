#pragma once

#include "acc/plugins/training_settings.hpp"
#include "acc/runtime/lr_schedule.hpp"
#include "optim/update.hpp"

/// `optimizer` and `scheduler` of a DeepSpeed file as what the runtime makes of them, with
/// DeepSpeed's defaults. All throw Error(config) naming the key.
namespace acc::optim {

OptimizerSettings optimizer_of(const plugins::OptimizerChoice& choice);
/// An empty function where no schedule was chosen.
LrSchedule schedule_of(const plugins::ScheduleChoice& choice);

}  // namespace acc::optim
