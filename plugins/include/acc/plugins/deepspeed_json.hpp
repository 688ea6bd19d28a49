#pragma once

#include "acc/plugins/document.hpp"
#include "acc/plugins/settings.hpp"

#include <string>
#include <vector>

namespace acc::plugins {

/// Puts what a DeepSpeed JSON file (keys of 0.19.8) says into `settings`, which hold the flags and
/// the YAML file already: `"auto"` leaves those in force, another value must not contradict them.
/// Returns notices about keys that are the program's business or have no effect. Throws
/// Error(config) with all faults.
std::vector<std::string> apply_deepspeed_json(const Document& document, int world_size,
                                              Settings& settings);

}  // namespace acc::plugins
