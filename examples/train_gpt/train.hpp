#pragma once

#include "options.hpp"

namespace train_gpt {

/// The whole run of one rank: set up, resume, train, save, export, sample.
void train(const Options& options);

}  // namespace train_gpt
