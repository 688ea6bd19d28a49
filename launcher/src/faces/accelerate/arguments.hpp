#pragma once

#include "acc/launcher/flags.hpp"
#include "acc/launcher/launch_plan.hpp"
#include "acc/plugins/document.hpp"
#include "acc/plugins/environment.hpp"
#include "acc/plugins/faults.hpp"
#include "acc/plugins/settings_table.hpp"

#include <functional>
#include <map>
#include <optional>
#include <string>

namespace acc::launcher {

/// The arguments of `accelerate launch` 1.15 by name, with Python's values, once its own code has
/// merged the file into them (commands/launch.py: _validate_launch_command). Where that code checks
/// nothing, any value is handed on as it is; see docs/compat.md, 17.
using Arguments = std::map<std::string, plugins::Node, std::less<>>;

/// Flags over the file over the defaults of the flags; `gpus` are those of this machine.
Arguments merged_arguments(const Flags& flags, const std::optional<plugins::Document>& config,
                           int gpus);

/// What argparse wants of this flag and `text` is not; nothing: it takes the text.
std::optional<std::string> argparse_expectation(const plugins::SettingRow& row,
                                                const std::string& text);

/// What the checks depend on besides the arguments.
struct ArgumentChecks {
  Mode mode = Mode::plain;
  bool has_config = false;
  bool threads_are_given = false;  ///< --num_cpu_threads_per_process
  /// Whether the program's Python has a library for fp8.
  std::function<bool()> has_fp8_library;
};

/// Adds what Accelerate's launcher stops at, meant or not: it compares text with numbers, and
/// calls methods of text on other values.
void check_arguments(const Arguments& arguments, const ArgumentChecks& checks,
                     plugins::Faults& faults);

/// Variables of the workers that carry arguments (utils/launch.py: prepare_*). Without those of
/// threads, addresses and torchrun.
plugins::Environment argument_variables(const Arguments& arguments, Mode mode);

}  // namespace acc::launcher
