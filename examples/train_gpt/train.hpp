#pragma once

#include "options.hpp"

namespace train_gpt {

/// The whole run of one rank: set up, resume, train, save, export, sample. With --checkpoint it
/// may end earlier, after a checkpoint: gives the signal that asked for it (SaveRequest), else 0.
int train(const Options& options);

}  // namespace train_gpt
