#pragma once

#include <acc/runtime.hpp>

namespace self_test {

/// Each compares what the runtime did with what must come out, on every rank, and throws acc::Error
/// with both where they differ. All are collective.
void check_ranks(acc::Runtime& runtime);
void check_gather(acc::Runtime& runtime);
void check_reduction(acc::Runtime& runtime);
/// Losses agree on all ranks and fall; the weights are those of the same training on one rank.
void check_training(acc::Runtime& runtime);
/// Needs a folder that all ranks see: one machine.
void check_checkpoint(acc::Runtime& runtime);

}  // namespace self_test
