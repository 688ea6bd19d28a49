// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/launcher/flags.hpp"
#include "acc/launcher/host_facts.hpp"
#include "acc/launcher/launch_plan.hpp"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher {

/// A front end: one of the command lines that acclaunch accepts. Each front end has its own table
/// of flags; all of them produce a LaunchPlan.
struct FrontEnd : settings::FlagTable {
  std::string_view name;   ///< subcommand, and the name of a link to acclaunch that selects it
  std::string_view usage;  ///< text of --help above the flags

  /// Makes all decisions of a launch, before anything is started. Throws Error with every fault of
  /// the command line and of the stage that failed.
  LaunchPlan (*plan)(const Flags& flags, const settings::Environment& environment,
                     const HostFacts& facts);
};

/// `acclaunch [launch]`: the flags of `accelerate launch`.
const FrontEnd& accelerate_front_end() noexcept;
/// `acclaunch torchrun`.
const FrontEnd& torchrun_front_end() noexcept;
/// `acclaunch deepspeed`.
const FrontEnd& deepspeed_front_end() noexcept;
/// `acclaunch test`: launches a built-in training program.
const FrontEnd& self_test_front_end() noexcept;
/// `acclaunch doctor`: a check program on each machine.
const FrontEnd& doctor_front_end() noexcept;

/// Returns the front end of that name, or nullptr.
const FrontEnd* find_front_end(std::string_view name) noexcept;

/// Parses a command line as `settings::parse_flags` does.
Flags parse_flags(const FrontEnd& front_end, std::span<const std::string> arguments);

/// Flags of a front end that --help lists below one heading.
struct FlagGroup {
  std::string title;
  std::vector<const settings::SettingRow*> rows;
};

/// Returns all flags of a front end by subject, in the order of --help.
std::vector<FlagGroup> flag_groups(const FrontEnd& front_end);

/// Returns the text of --help, generated from the front end's table.
std::string help_text(const FrontEnd& front_end);

}  // namespace acc::launcher
