#pragma once

#include "acc/launcher/flags.hpp"
#include "acc/launcher/host_facts.hpp"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace acc::launcher {

/// How PROGRAM is to be read.
struct ProgramKind {
  bool module = false;     ///< a Python module
  bool no_python = false;  ///< to be executed even if it ends in .py
  /// As torchrun takes it: any file is a Python program, here unless it is a binary.
  bool only_binaries_without_python = false;
  bool unbuffered = true;  ///< python -u
};

/// Throws Error(invalid_argument) where there is no program, or the kind contradicts itself.
void check_program(const Flags& flags, ProgramKind kind);

/// Whether PROGRAM runs under Python.
bool is_for_python(const std::string& program, ProgramKind kind, const HostFacts& facts);

/// Where an executable of that name lies in PATH; its folders count from the working directory.
std::optional<std::filesystem::path> find_in_path(const std::string& name,
                                                  const plugins::Environment& environment,
                                                  const std::filesystem::path& working_directory);

/// `$PYTHON_EXEC` or python3, found in PATH or beside acclaunch. Throws as `program_command`.
std::string find_python(const plugins::Environment& environment, const HostFacts& facts);

/// The command of every worker: `*.py` and modules under `$PYTHON_EXEC` or python3, anything else
/// itself. A bare name is looked up in PATH, then beside acclaunch. Throws Error(no_program) or
/// Error(not_executable) when it could not be started.
std::vector<std::string> program_command(const Flags& flags, ProgramKind kind,
                                         const plugins::Environment& environment,
                                         const HostFacts& facts);

}  // namespace acc::launcher
