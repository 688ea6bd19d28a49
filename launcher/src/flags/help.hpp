#pragma once

#include "acc/launcher/front_end.hpp"

#include <cstddef>
#include <string>
#include <string_view>

namespace acc::launcher {

/// Returns the long flag of a key in the front end's spelling: `--nproc-per-node`.
std::string as_typed(const FrontEnd& front_end, std::string_view key);

/// The column, from 0, in which the descriptions of flags and commands begin.
inline constexpr std::size_t kHelpColumn = 44;

/// The lines of one flag in --help: the flag, its description, what it expects, its default.
std::string help_entry(const FrontEnd& front_end, const plugins::SettingRow& row);

}  // namespace acc::launcher
