#pragma once

#include "acc/plugins/environment.hpp"

#include <string>

namespace acc::launcher {

/// ACC_SHARE_GPUS: more workers than GPUs are no mistake.
bool shares_gpus(const plugins::Environment& environment);

/// Throws Error(config) where CUDA_VISIBLE_DEVICES has fewer entries than a machine has workers
/// that shall see one each. `where`: what asks for that.
void check_own_gpus(const std::string& where, int local_world_size,
                    const plugins::Environment& environment);

}  // namespace acc::launcher
