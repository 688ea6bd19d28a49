// SPDX-License-Identifier: Apache-2.0
#include "plan/machines.hpp"

#include "acc/base/text.hpp"
#include "acc/plugins/settings_table.hpp"

#include <algorithm>
#include <array>

namespace acc::launcher::plan {
namespace {

/// Returns the launcher's flags as typed, without those that set a machine's rank and the address.
std::string kept_flags(const Flags& flags) {
  std::string text;
  bool drop_value = false;
  for (const std::string& argument : flags.own_arguments) {
    if (drop_value) {
      drop_value = false;
      continue;
    }
    std::string name = argument.substr(0, argument.find('='));
    std::ranges::replace(name, '-', '_');
    static constexpr std::array kPlacing = {"__machine_rank", "__main_process_ip",
                                            "__main_process_port"};
    if (std::ranges::find(kPlacing, name) != kPlacing.end()) {
      drop_value = argument.find('=') == std::string::npos;
      continue;
    }
    text += " " + shell_quoted(argument);
  }
  return text;
}

}  // namespace

std::string quoted_program(const Flags& flags) {
  std::string text = " " + shell_quoted(flags.program.empty() ? "PROGRAM" : flags.program);
  for (const std::string& argument : flags.arguments) {
    text += " " + shell_quoted(argument);
  }
  return text;
}

std::string machines_hint(const Flags& flags, int num_machines, const std::string& address,
                          std::uint16_t port) {
  std::string text;
  for (int rank = 0; rank < num_machines; ++rank) {
    text += "\n  on machine " + std::to_string(rank) + ":  acclaunch" + kept_flags(flags) +
            " --machine_rank " + std::to_string(rank) + " --main_process_ip " +
            shell_quoted(address) + " --main_process_port " + std::to_string(port) +
            quoted_program(flags);
  }
  return text;
}

}  // namespace acc::launcher::plan
