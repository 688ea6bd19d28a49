// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/documents/accelerate_config.hpp"
#include "acc/documents/convert_config.hpp"
#include "acc/documents/deepspeed_json.hpp"
#include "acc/settings/settings.hpp"
#include "acc/settings/sharding_settings.hpp"

/// The steps of a conversion: read a configuration, find its nearest counterpart in the target
/// form, and list what is lost or changes.
namespace acc::documents {

/// A configuration that was read, with the sizes that it gives.
struct ConversionSource {
  settings::Settings settings;
  settings::ShardingSettings sharding;
  ConfigForm form = ConfigForm::deepspeed;
  DeepSpeedFile deepspeed_file;  ///< its keys without a row in the settings table
  int world_size = 0;            ///< 0: the file does not give it
  int gpus_per_machine = 0;      ///< 0: neither the file nor the user gave it
  int shard_size = 0;            ///< ranks per shard group or hpZ group; 0: no groups
  std::vector<std::string> notices;
};

/// True for a form with `fsdp_config`.
bool is_fsdp(ConfigForm form) noexcept;

/// Returns the setting that says what is sharded, in a form of the configuration.
settings::SettingKey strategy_key(ConfigForm form);

/// Reads the input. Throws Error(config) if it has faults.
ConversionSource read_conversion_source(const ConversionInput& input);

/// Returns the sharding that FSDP offers nearest to the source's. Unchanged if the source is
/// FSDP's.
settings::ShardingSettings fsdp_sharding(const ConversionSource& source);
/// Returns the sharding that DeepSpeed offers nearest to the source's. Unchanged if the source is
/// DeepSpeed's.
settings::ShardingSettings deepspeed_sharding(const ConversionSource& source);

/// True if this version of FSDP has no such setting.
bool is_lost_in_fsdp(int version, const settings::SettingRow& row);

/// Returns the conversion warnings: one line per setting that is lost or changes its meaning.
std::vector<std::string> conversion_remarks(const ConversionSource& source, ConfigForm form);

}  // namespace acc::documents
