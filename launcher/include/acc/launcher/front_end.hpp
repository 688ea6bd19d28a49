#pragma once

#include "acc/launcher/flags.hpp"
#include "acc/launcher/host_facts.hpp"
#include "acc/launcher/launch_plan.hpp"
#include "acc/plugins/settings_table.hpp"

#include <span>
#include <string>
#include <string_view>

namespace acc::launcher {

/// One-letter spelling of a flag.
struct ShortFlag {
  char letter;
  std::string_view key;
};

/// A flag of the original launcher that acclaunch recognises but does not support. A trailing `*`
/// in `key` matches any rest.
struct RefusedFlag {
  std::string_view key;
  std::string_view reason;
};

/// A front end: one of the command lines that acclaunch accepts. Each front end has its own table
/// of flags; all of them produce a LaunchPlan.
struct FrontEnd {
  std::string_view name;   ///< subcommand, and the name of a link to acclaunch that selects it
  std::string_view usage;  ///< text of --help above the flags
  std::span<const plugins::SettingRow> table;
  std::span<const ShortFlag> short_flags;
  std::span<const RefusedFlag> refused;
  char separator = '_';      ///< between the words of a flag, in help and messages
  bool abbreviates = false;  ///< accept an unambiguous prefix of a long flag

  /// Makes all decisions of a launch, before anything is started. Throws Error with every fault of
  /// the command line and of the stage that failed.
  LaunchPlan (*plan)(const Flags& flags, const plugins::Environment& environment,
                     const HostFacts& facts);
};

const FrontEnd&
accelerate_cli() noexcept;  ///< `acclaunch [launch]`: the flags of `accelerate launch`
const FrontEnd& torchrun_cli() noexcept;   ///< `acclaunch torchrun`
const FrontEnd& deepspeed_cli() noexcept;  ///< `acclaunch deepspeed`
const FrontEnd&
self_test_cli() noexcept;               ///< `acclaunch test`: launches a built-in training program
const FrontEnd& doctor_cli() noexcept;  ///< `acclaunch doctor`: a check program on each machine

/// Returns the front end of that name, or nullptr.
const FrontEnd* find_front_end(std::string_view name) noexcept;

/// Splits a command line into flags, program and program arguments. A long flag may be spelled with
/// `-` or `_`; its value follows `=` or is the next argument. The value of a short flag may be
/// attached to it. Does not throw: faults are collected in the result.
Flags parse_flags(const FrontEnd& front_end, std::span<const std::string> arguments);

/// Returns the text of --help, generated from the front end's table.
std::string help_text(const FrontEnd& front_end);

}  // namespace acc::launcher
