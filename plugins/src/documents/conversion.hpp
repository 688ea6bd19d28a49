#pragma once

#include "acc/plugins/accelerate_config.hpp"
#include "acc/plugins/convert_config.hpp"
#include "acc/plugins/deepspeed_json.hpp"
#include "acc/plugins/settings.hpp"
#include "acc/plugins/sharding_settings.hpp"

/// The steps of a conversion: read a source, find what the other side can have of it, say what is
/// lost.
namespace acc::plugins {

/// A configuration that was read.
struct ConversionSource {
  Settings settings;
  ShardingSettings sharding;
  bool is_fsdp = false;
  int fsdp_version = 1;
  DeepSpeedFile deepspeed_file;  ///< what it says besides the settings
  int world_size = 0;            ///< 0: the file does not say
  int gpus_per_machine = 0;      ///< 0: nobody says
  int shard_size = 0;            ///< ranks of a shard group, or of hpZ's; 0: there are none
  std::vector<std::string> notices;
};

/// Throws Error(config).
ConversionSource read_conversion_source(const ConversionInput& input);

/// What FSDP, or DeepSpeed, can have of the source's sharding; as it is if the source is theirs.
ShardingSettings fsdp_sharding(const ConversionSource& source);
ShardingSettings deepspeed_sharding(const ConversionSource& source);

/// What is lost or changed on the way to a form, in the order of the settings table.
std::vector<std::string> conversion_remarks(const ConversionSource& source, ConfigForm form);

}  // namespace acc::plugins
