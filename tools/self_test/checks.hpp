// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <acc/runtime.hpp>

namespace self_test {

// Each check compares a result of the runtime with the expected one, on every rank, and throws
// acc::Error with both values if they differ. All checks are collective.

/// Checks all_gather, mean and barrier.
void check_ranks(acc::Runtime& runtime);
/// Checks gathered weights against known values.
void check_gather(acc::Runtime& runtime);
/// Checks one step of gradient averaging against known values.
void check_reduction(acc::Runtime& runtime);
/// Checks that losses fall and are the same on all ranks, and that the weights are those of the
/// same training on one rank.
void check_training(acc::Runtime& runtime);
/// Checks that training resumes from a checkpoint with bitwise equal weights. Uses the temporary
/// folder, so all ranks must be on one machine.
void check_checkpoint(acc::Runtime& runtime);

}  // namespace self_test
