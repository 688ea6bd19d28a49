// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/plugins/environment.hpp"

#include <string>

namespace acc::launcher::plan {

/// True if ACC_SHARE_GPUS allows more workers than GPUs.
bool shares_gpus(const plugins::Environment& environment);

/// Throws Error(config) if CUDA_VISIBLE_DEVICES has fewer entries than the machine has workers that
/// are to see one GPU each. `where` is the flag or variable that requests this.
void check_own_gpus(const std::string& where, int local_world_size,
                    const plugins::Environment& environment);

}  // namespace acc::launcher::plan
