#pragma once

#include "acc/plugins/document.hpp"
#include "acc/plugins/settings.hpp"
#include "acc/plugins/sharding_settings.hpp"

/// Sharding settings in the words of each configuration.
namespace acc::plugins {

/// Where the settings of Section::training stand, or those of them that have a place there.
enum class TrainingPlace {
  yaml_block,      ///< `deepspeed_config` of an Accelerate file
  deepspeed_file,  ///< DeepSpeed's own
  beside_it,       ///< an Accelerate file that names one: what has no place in it
};
/// Adds those that are given to a block.
void add_training(const Settings& settings, TrainingPlace place, Node& block);

/// `fsdp_config` for a version of FSDP, of settings that FSDP can have.
Node fsdp_block(const ShardingSettings& sharding, int version);

/// `deepspeed_config` of an Accelerate file, of settings that DeepSpeed can have. What an
/// Accelerate file has no key for (hpZ) is left out.
Node deepspeed_block(const ShardingSettings& sharding, const Settings& settings);

/// DeepSpeed's own file. Batch sizes are "auto", and so is accumulation where the settings do not
/// give it.
Node deepspeed_json(const ShardingSettings& sharding, const Settings& settings);

}  // namespace acc::plugins
