#pragma once

#include "acc/plugins/settings_table.hpp"

#include <span>
#include <string>

namespace acc::rendezvous {

/// Returns the table of the daemon's settings. Flags, keys of the file, environment variables,
/// --help, --print_config and the table in docs/rendezvous.md are made from its rows.
std::span<const plugins::SettingRow> daemon_settings() noexcept;

/// Returns the name of a setting's environment variable: `ACC_RENDEZVOUS_<KEY>`.
std::string variable_of(const plugins::SettingRow& row);

}  // namespace acc::rendezvous
