// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/launcher/flags.hpp"
#include "acc/launcher/host_facts.hpp"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace acc::launcher::plan {

/// How PROGRAM is to be interpreted.
struct ProgramKind {
  bool module = false;     ///< PROGRAM is a Python module
  bool no_python = false;  ///< execute PROGRAM directly even if it ends in .py
  /// Every file except an ELF binary is a Python program. torchrun treats every file as one.
  bool only_binaries_without_python = false;
  bool unbuffered = true;  ///< run Python with -u
};

/// Throws Error(invalid_argument) if there is no program, or if the kind contradicts itself.
void check_program(const Flags& flags, ProgramKind kind);

/// True if PROGRAM runs under Python.
bool is_for_python(const std::string& program, ProgramKind kind, const HostFacts& facts);

/// Returns the path of an executable in PATH, or empty. Relative folders in PATH are relative to
/// `working_directory`.
std::optional<std::filesystem::path> find_in_path(const std::string& name,
                                                  const settings::Environment& environment,
                                                  const std::filesystem::path& working_directory);

/// Returns the name or path of the Python interpreter: `$PYTHON_EXEC`, else that of the virtual
/// environment in whose folder of programs acclaunch is installed, else python3.
std::string python_named(const settings::Environment& environment,
                         const std::filesystem::path& executable_directory);

/// Returns the interpreter of `python_named`, found in PATH or next to acclaunch. Throws like
/// `program_command`.
std::string find_python(const settings::Environment& environment, const HostFacts& facts);

/// Returns the command line of the workers: `*.py` and modules run under `find_python`, other
/// programs directly. A bare name is looked up in PATH, then in acclaunch's folder. Throws
/// Error(no_program), if `flags` need the program, or Error(not_executable) if the program cannot
/// be started.
std::vector<std::string> program_command(const Flags& flags, ProgramKind kind,
                                         const settings::Environment& environment,
                                         const HostFacts& facts);

/// Returns the commands to run on the machines, one line per machine, for an error message about a
/// missing rank or address.
std::string machines_hint(const Flags& flags, int num_machines, const std::string& address,
                          std::uint16_t port);

/// Returns the program and its arguments, quoted for a shell, with a leading space.
std::string quoted_program(const Flags& flags);

}  // namespace acc::launcher::plan
