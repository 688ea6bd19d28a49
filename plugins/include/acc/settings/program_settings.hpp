// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/settings/sharding_settings.hpp"

#include <optional>
#include <string>
#include <vector>

namespace acc::settings {

/// A field of a plugin that the program set.
struct ProgramValue {
  std::string field;  ///< name in the plugin: `sharding_strategy`
  std::string key;    ///< name of the setting: `fsdp_sharding_strategy`
  std::string text;   ///< value, spelled as in a configuration file

  bool operator==(const ProgramValue&) const = default;
};

/// The settings that a program chose by filling in a plugin. If `plugin` is empty, it chose none.
struct ProgramSettings {
  std::string plugin;  ///< name of the plugin's class, for messages
  std::string origin;  ///< mode of the plugin: `fsdp` or `deepspeed`
  std::vector<ProgramValue> values;
};

}  // namespace acc::settings
