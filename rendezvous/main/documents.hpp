// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/settings/settings.hpp"

#include <span>
#include <string>

namespace acc::rendezvous {

/// Returns the settings as an equivalent YAML file, with the source of each value as a comment.
std::string config_text(const settings::Settings& settings);

/// Returns the text of --help.
std::string help_text();

/// Returns the table of settings in docs/rendezvous.md, as Markdown.
std::string settings_table_text();

/// Returns what the completion script reads; `words` follow the program's name, the last one is
/// completed.
std::string candidates_text(std::span<const std::string> words);

/// Returns the manual page acc-rendezvous(8).
std::string manual_page_text();

}  // namespace acc::rendezvous
