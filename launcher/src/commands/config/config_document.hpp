// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/plugins/document.hpp"
#include "commands/config/questionnaire.hpp"

namespace acc::launcher::commands {

/// Returns the configuration file for complete answers, with every key that Accelerate's own
/// questionnaire writes. `home`: the home directory, which replaces `~`.
plugins::Node config_document(const Answers& answers, const std::string& home);

/// Returns the file that `accelerate config default` writes: one process per GPU, or one on the
/// CPU.
plugins::Node default_config_document(const std::string& mixed_precision, int num_gpus);

/// Returns an existing file with missing keys set to Accelerate's defaults.
plugins::Node updated_config_document(const plugins::Document& document);

}  // namespace acc::launcher::commands
