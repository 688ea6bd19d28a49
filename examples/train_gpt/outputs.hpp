#pragma once

#include "options.hpp"

namespace train_gpt {

/// Refuses, before the first step, destinations of --save and --export that cannot be written
/// after the last one. Throws acc::Error(config) naming the path. Rank 0 writes, so rank 0 checks.
void check_outputs(const Options& options);

}  // namespace train_gpt
