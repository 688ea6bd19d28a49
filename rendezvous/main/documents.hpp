// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/plugins/settings.hpp"

#include <string>

namespace acc::rendezvous {

/// Returns the settings as an equivalent YAML file, with the source of each value as a comment.
std::string config_text(const plugins::Settings& settings);

/// Returns the text of --help.
std::string help_text();

/// Returns the table of settings in docs/rendezvous.md, as Markdown.
std::string settings_table_text();

}  // namespace acc::rendezvous
