// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "doctor/facts.hpp"

namespace acc::doctor {

/// Fills in what this machine can find out about itself: names, limits, memory, libraries. Does not
/// change `machine`, `gpus` and `driver_version`, which the launcher passes, nor `address`, `ports`
/// and `token`.
void gather(MachineFacts& facts);

}  // namespace acc::doctor
