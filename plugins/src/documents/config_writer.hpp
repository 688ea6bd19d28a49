// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/documents/document.hpp"
#include "acc/settings/settings.hpp"
#include "acc/settings/sharding_settings.hpp"

/// Writing of sharding settings as blocks of a configuration file.
namespace acc::documents {

/// The file to which settings of Section::training are written.
enum class TrainingPlace {
  yaml_block,      ///< `deepspeed_config` of an Accelerate file: all of them
  other_mode,      ///< the same, in a file for FSDP: those that have an effect there
  deepspeed_file,  ///< DeepSpeed's JSON file: those that have a key there
  beside_it,       ///< an Accelerate file that names a DeepSpeed file: those without a key there
};
/// True if a setting of Section::training is given and has an effect with FSDP.
bool has_effect_with_fsdp(const settings::Settings& settings, const settings::SettingRow& row);

/// Adds the settings of Section::training that are given and belong to this place.
void add_training(const settings::Settings& settings, TrainingPlace place, Node& block);

/// Returns `fsdp_config` for a version of FSDP. sharding: from `fsdp_sharding`.
Node fsdp_block(const settings::ShardingSettings& sharding, int version);

/// Returns `deepspeed_config` of an Accelerate file. sharding: from `deepspeed_sharding`. Leaves
/// out settings for which an Accelerate file has no key (hpZ).
Node deepspeed_block(const settings::ShardingSettings& sharding,
                     const settings::Settings& settings);

/// Adds the settings for which DeepSpeed's JSON file has no key.
void add_beside_file(const settings::Settings& settings, const settings::ShardingSettings& sharding,
                     Node& block);

/// Returns DeepSpeed's JSON file. Batch sizes are "auto", and so is the number of accumulation
/// steps if the settings do not give it.
Node deepspeed_json(const settings::ShardingSettings& sharding, const settings::Settings& settings);

}  // namespace acc::documents
