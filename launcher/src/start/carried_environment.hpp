#pragma once

#include "acc/launcher/start_plan.hpp"
#include "acc/plugins/environment.hpp"

namespace acc::launcher {

/// What of this process's environment goes along to other machines: all but what belongs to this
/// host, session or job. srun takes all of it along by itself.
plugins::Environment environment_for_other_machines(const plugins::Environment& own,
                                                    StartPlan::Means means);

}  // namespace acc::launcher
