#pragma once

#include "options.hpp"

namespace train_gpt {

/// Refuses, before the first step, destinations of --save, --checkpoint and --export that cannot be
/// written later. Throws acc::Error(config) naming the path. Rank 0 writes, so rank 0 checks.
void check_outputs(const Options& options);

}  // namespace train_gpt
