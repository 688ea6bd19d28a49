#pragma once

#include "acc/plugins/document.hpp"
#include "commands/config/questionnaire.hpp"

namespace acc::launcher {

/// The configuration file that complete answers stand for, with every key that Accelerate's own
/// questionnaire writes. `home`: what `~` stands for.
plugins::Node config_document(const Answers& answers, const std::string& home);

/// What `accelerate config default` sets: one process a GPU, or one on the CPU.
plugins::Node default_config_document(const std::string& mixed_precision, int num_gpus);

/// An existing file with the keys that it lacks set to Accelerate's defaults.
plugins::Node updated_config_document(const plugins::Document& document);

}  // namespace acc::launcher
