#pragma once

#include "acc/plugins/training_settings.hpp"
#include "acc/runtime/lr_schedule.hpp"
#include "optim/update.hpp"

/// `optimizer` and `scheduler` of the settings as what the runtime makes of them; what they leave
/// out is as the optimizer, or DeepSpeed's schedule, has it. All throw Error(config) naming the
/// key.
namespace acc::optim {

OptimizerSettings optimizer_of(const plugins::OptimizerChoice& choice);
/// An empty function where no schedule was chosen.
LrSchedule schedule_of(const plugins::ScheduleChoice& choice);

}  // namespace acc::optim
