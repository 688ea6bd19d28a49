// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace acc::launcher::commands::compare {

/// One side of a comparison that is run.
struct SideRun {
  std::string title;  ///< as the user wrote it
  std::vector<std::string> flags;
  std::map<std::string, std::string> variables;
};

/// Reads `FILE`, a configuration, or `key=value,…`: flags of the launcher without dashes, and
/// env.NAME=VALUE. A part without `=` belongs to the value before it. Throws
/// Error(invalid_argument).
SideRun read_side(const std::string& text);

/// A command line of `acclaunch compare`.
struct Words {
  std::vector<std::string> own;       ///< flags of the command, and folders of recordings
  std::vector<std::string> launcher;  ///< flags for both sides
  std::vector<std::string> program;   ///< with its arguments
};

/// Splits the arguments. The command's own flags may be anywhere before the program.
Words split_words(std::span<const std::string> arguments);

/// Thrown after a signal that ends this process has ended the run.
struct Interrupted {
  int signal;
};

/// What is the same for all sides.
struct RunSettings {
  int steps = 0;
  std::string random;
  std::chrono::seconds timeout{0};
};

/// Runs this executable as a launch that records into `folder`, with its output in the file `log`.
/// Returns why the run is not complete; empty if it is. Throws Interrupted.
std::string run_side(const SideRun& side, const Words& words, const RunSettings& settings,
                     const std::filesystem::path& folder, const std::filesystem::path& log);

/// The last lines of a file.
std::string last_lines_of(const std::filesystem::path& file, std::size_t count);

}  // namespace acc::launcher::commands::compare
