// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/documents/document.hpp"
#include "acc/launcher/flags.hpp"
#include "acc/launcher/setting_keys.hpp"
#include "acc/settings/environment.hpp"
#include "acc/settings/faults.hpp"
#include "acc/settings/settings_table.hpp"

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace acc::launcher::accelerate_cli {

/// Arguments of `accelerate launch` 1.15 by name, with their Python values, after its own code has
/// merged the configuration file into them (commands/launch.py: _validate_launch_command). Values
/// that Accelerate's code does not check are passed on unchanged; see docs/compat.md, 17.
using Arguments = std::map<std::string, documents::Node, std::less<>>;

/// Returns the merged arguments: given flags override the file, the file overrides the defaults.
/// `gpus` is the number of visible GPUs of this machine, the default of num_processes without a
/// file.
Arguments merged_arguments(const Flags& flags, const std::optional<documents::Document>& config,
                           int gpus);

/// Returns a description of what argparse expects of this flag if it rejects `text`; else empty.
std::optional<std::string> argparse_expectation(const settings::SettingRow& row,
                                                const std::string& text);

/// Inputs of `check_arguments` besides the arguments.
struct ArgumentChecks {
  Mode mode = Mode::plain;
  bool has_config = false;
  bool threads_are_given = false;  ///< --num_cpu_threads_per_process is given
  /// True if the program's Python has a library for fp8. Called only for mixed_precision fp8,
  /// because it starts Python.
  std::function<bool()> has_fp8_library;
};

/// Adds a fault for each argument that makes Accelerate's launcher stop. Some of these stops are
/// accidental: it compares text with numbers, and calls string methods on other values.
void check_arguments(const Arguments& arguments, const ArgumentChecks& checks,
                     settings::Faults& faults);

/// Returns the workers' variables that carry arguments (utils/launch.py: prepare_*), without those
/// for threads, addresses and torchrun.
settings::Environment argument_variables(const Arguments& arguments, Mode mode);

}  // namespace acc::launcher::accelerate_cli
