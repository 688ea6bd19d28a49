#pragma once

#include "acc/launcher/flags.hpp"
#include "acc/launcher/host_facts.hpp"
#include "acc/launcher/launch_plan.hpp"
#include "acc/plugins/settings_table.hpp"

#include <span>
#include <string>
#include <string_view>

namespace acc::launcher {

struct ShortFlag {
  char letter;
  std::string_view key;
};

/// A flag of the original that acclaunch knows and does not do. A trailing `*` in `key` stands for
/// any rest.
struct RefusedFlag {
  std::string_view key;
  std::string_view reason;
};

/// One of the command lines that acclaunch speaks. Each has a table of flags of its own, and all
/// end in the same LaunchPlan.
struct Face {
  std::string_view name;   ///< sub-command, and the name of a link that stands for it
  std::string_view usage;  ///< what --help says above the flags
  std::span<const plugins::SettingRow> table;
  std::span<const ShortFlag> short_flags;
  std::span<const RefusedFlag> refused;
  char separator = '_';      ///< between the words of a flag, in help and messages
  bool abbreviates = false;  ///< a beginning that only one long flag has stands for it

  /// Decides everything before anything is started. Throws Error with the faults of the command
  /// line and all others of a stage.
  LaunchPlan (*plan)(const Flags& flags, const plugins::Environment& environment,
                     const HostFacts& facts);
};

const Face& accelerate_face() noexcept;  ///< `acclaunch [launch]`: the flags of `accelerate launch`
const Face& torchrun_face() noexcept;    ///< `acclaunch torchrun`
const Face& deepspeed_face() noexcept;   ///< `acclaunch deepspeed`
const Face& self_test_face() noexcept;   ///< `acclaunch test`: a launch of our own program
const Face& doctor_face() noexcept;      ///< `acclaunch doctor`: one of our own on each machine

/// The face of that name, or nullptr.
const Face* find_face(std::string_view name) noexcept;

/// Takes apart what stands before and after the program. A long flag may be spelled with `-` or
/// `_`, its value follows `=` or a blank; that of a short flag may be attached.
Flags parse_flags(const Face& face, std::span<const std::string> arguments);

/// Text of --help, made from the face's table.
std::string help_text(const Face& face);

}  // namespace acc::launcher
