// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "run/options.hpp"

namespace train_gpt {

/// Checks the destinations of --save, --checkpoint and --export before the first step, so that a
/// run does not fail at its end. Throws acc::Error(config) with the path. Called on rank 0, which
/// writes them.
void check_outputs(const Options& options);

}  // namespace train_gpt
