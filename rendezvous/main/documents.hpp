#pragma once

#include "acc/plugins/settings.hpp"

#include <string>

namespace acc::rendezvous {

/// The settings as a file that means the same, with the source of each value as a comment.
std::string config_text(const plugins::Settings& settings);

/// The table of docs/rendezvous.md.
std::string settings_table_text();

}  // namespace acc::rendezvous
