#pragma once

#include "acc/plugins/document.hpp"
#include "acc/plugins/settings.hpp"

#include <string>
#include <vector>

namespace acc::plugins {

/// What an Accelerate configuration file says besides the settings that it sets.
struct AccelerateConfig {
  std::string distributed_type;  ///< NO, MULTI_CPU, MULTI_GPU, FSDP or DEEPSPEED
  bool has_parallelism_config = false;
  /// Keys of `deepspeed_config` in file order, and `mixed_precision` if the file holds it:
  /// ACCELERATE_CONFIG_DS_FIELDS.
  std::vector<std::string> deepspeed_fields;
  std::vector<std::string> notices;  ///< old names translated, keys without effect
};

/// Reads a file as Accelerate 1.15 writes it into `settings`. Throws Error(config) with all faults:
/// unknown keys and values, and what acclaunch does not do (TPU, SageMaker, Megatron, …), by name.
AccelerateConfig apply_accelerate_config(const Document& document, Settings& settings);

}  // namespace acc::plugins
