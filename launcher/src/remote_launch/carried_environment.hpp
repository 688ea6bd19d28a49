// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/launcher/remote_launch_plan.hpp"
#include "acc/plugins/environment.hpp"

namespace acc::launcher::remote_launch {

/// Returns the part of this process's environment that is passed on to other machines: everything
/// except variables that belong to this host, session or job. Empty for srun, which passes on the
/// whole environment itself.
plugins::Environment environment_for_other_machines(const plugins::Environment& own,
                                                    RemoteLaunchPlan::Means means);

}  // namespace acc::launcher::remote_launch
