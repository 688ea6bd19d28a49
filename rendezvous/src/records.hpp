#pragma once

#include "acc/rendezvous/meeting.hpp"

#include <string>
#include <string_view>

/// What launchers tell each other through the store: lines of text.
namespace acc::rendezvous {

/// Keys below this are the launchers' own.
inline constexpr std::string_view kLauncherKeys = "acclaunch/";

/// "acclaunch/<run_id>/<name>"
std::string launcher_key(std::string_view run_id, std::string_view name);

/// Takes the text up to the next newline off `text`.
std::string_view take_line(std::string_view& text);
/// Throws Error(protocol) where the line is no number.
int take_int(std::string_view& text);
std::string one_line(std::string text);

std::string encode(const Machine& machine);
/// Takes the lines of one machine off `text`.
Machine take_machine(std::string_view& text);

/// "machine 1 (node2, pid 4711)"
std::string describe(const Machine& machine);

}  // namespace acc::rendezvous
