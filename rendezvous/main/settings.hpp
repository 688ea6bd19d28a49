#pragma once

#include "acc/plugins/settings_table.hpp"

#include <span>
#include <string>

namespace acc::rendezvous {

/// The daemon's settings, each named once: flags, keys of the file, variables, --help,
/// --print_config and the table of docs/rendezvous.md are made from these rows.
std::span<const plugins::SettingRow> daemon_settings() noexcept;

/// `ACC_RENDEZVOUS_<KEY>`.
std::string variable_of(const plugins::SettingRow& row);

}  // namespace acc::rendezvous
