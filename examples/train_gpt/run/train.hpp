// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "run/options.hpp"

namespace train_gpt {

/// Runs the complete training of one rank: set up, resume, train, save, export, sample. Returns 0,
/// or the signal that asked to save a checkpoint and to end early (--checkpoint, SaveRequest).
int train(const Options& options);

}  // namespace train_gpt
