// SPDX-License-Identifier: Apache-2.0
// Finds PROGRAM and builds its command line, so that a missing or unusable program is reported
// before the rendezvous, with the exit statuses of a shell: 127 (not found) and 126 (not
// executable).
#include "plan/program_command.hpp"

#include "acc/base/error.hpp"
#include "host/own_variables.hpp"

#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace acc::launcher::plan {
namespace {

namespace fs = std::filesystem;

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

bool is_executable(const fs::path& path) {
  return is_file(path) && access(path.c_str(), X_OK) == 0;
}

/// Returns the path of an executable. A bare name is looked up in PATH, then in acclaunch's folder.
/// A path is returned unchanged. Throws Error(no_program) or Error(not_executable).
std::string find_executable(const std::string& program, const settings::Environment& environment,
                            const HostFacts& facts) {
  if (program.find('/') == std::string::npos) {
    if (const auto found = find_in_path(program, environment, facts.working_directory)) {
      return found->string();
    }
    if (is_executable(facts.executable_directory / program)) {
      return (facts.executable_directory / program).string();
    }
    const bool lies_here = is_file(facts.working_directory / program);
    throw Error(Errc::no_program, "cannot find program " + program +
                                      " in PATH or next to acclaunch" +
                                      (lies_here ? "; did you mean ./" + program + "?" : ""));
  }
  const fs::path path = facts.working_directory / program;
  std::error_code error;
  if (!fs::exists(path, error)) {
    throw Error(Errc::no_program, "cannot find program " + program);
  }
  if (!is_executable(path)) {
    throw Error(Errc::not_executable,
                "cannot execute " + program +
                    (is_file(path) ? ": it is not executable (chmod +x)" : ": it is not a file"));
  }
  return program;
}

/// Returns INTERPRETER of a script's first line `#!INTERPRETER [ARGUMENT]`; "" if it has none.
std::string interpreter_of(const fs::path& script) {
  constexpr std::size_t kKernelReads = 256;  // the kernel reads BINPRM_BUF_SIZE bytes (execve(2))
  std::string line(kKernelReads, '\0');
  std::ifstream(script, std::ios::binary).read(line.data(), kKernelReads);
  line.resize(std::min(line.find('\n'), line.size()));
  if (!line.starts_with("#!")) {
    return "";
  }
  line.erase(0, std::min(line.find_first_not_of(" \t", 2), line.size()));
  return line.substr(0, line.find_first_of(" \t"));
}

/// Throws Error(not_executable) if a script's interpreter is missing. Without this check execve
/// would only report "No such file or directory" (ENOENT), although the script exists.
void check_interpreter(const std::string& program, const HostFacts& facts) {
  const std::string interpreter = interpreter_of(facts.working_directory / program);
  if (interpreter.empty() || is_executable(facts.working_directory / interpreter)) {
    return;
  }
  const bool from_windows = interpreter.ends_with('\r');
  throw Error(Errc::not_executable,
              "cannot execute " + program + ": its first line names the interpreter " +
                  interpreter.substr(0, interpreter.find('\r')) +
                  (from_windows ? " and has a Windows line ending (CRLF); convert the script to "
                                  "Unix line endings"
                                : ", which does not exist or is not executable"));
}

/// True if the file begins with ELF's magic number.
bool is_binary(const fs::path& path) {
  std::string start(4, '\0');
  std::ifstream(path, std::ios::binary).read(start.data(), 4);
  return start ==
         "\x7f"
         "ELF";
}

}  // namespace

bool is_for_python(const std::string& program, ProgramKind kind, const HostFacts& facts) {
  const fs::path path = facts.working_directory / program;
  return kind.module ||
         (!kind.no_python && (program.ends_with(".py") || (kind.only_binaries_without_python &&
                                                           is_file(path) && !is_binary(path))));
}

std::optional<fs::path> find_in_path(const std::string& name,
                                     const settings::Environment& environment,
                                     const fs::path& working_directory) {
  const std::string path =
      host::value_of(environment, host::variables.path, "/usr/local/bin:/usr/bin:/bin");
  for (const std::string_view folder : split(path, ':')) {
    const fs::path candidate = working_directory / fs::path(folder) / name;
    if (is_executable(candidate)) {
      return candidate;
    }
  }
  return std::nullopt;
}

void check_program(const Flags& flags, ProgramKind kind) {
  if (flags.program.empty() && flags.needs_program) {
    throw Error(Errc::invalid_argument,
                "no program to start: PROGRAM is missing after the flags, see --help");
  }
  if (kind.module && kind.no_python) {
    throw Error(Errc::invalid_argument,
                "--module and --no_python exclude each other; a module needs Python");
  }
}

std::string python_named(const settings::Environment& environment,
                         const fs::path& executable_directory) {
  const fs::path own = executable_directory / "python3";
  const bool in_virtual_environment =
      is_file(executable_directory.parent_path() / "pyvenv.cfg") && is_executable(own);
  return host::value_of(environment, host::variables.python,
                        in_virtual_environment ? own.string() : "python3");
}

std::string find_python(const settings::Environment& environment, const HostFacts& facts) {
  const std::string name = python_named(environment, facts.executable_directory);
  try {
    return find_executable(name, environment, facts);
  } catch (const Error& error) {
    throw Error(error.code(),
                std::string(error.what()) +
                    "; a Python program needs it (set PYTHON_EXEC to use another one)");
  }
}

std::vector<std::string> program_command(const Flags& flags, ProgramKind kind,
                                         const settings::Environment& environment,
                                         const HostFacts& facts) {
  const std::string& program = flags.program;
  check_program(flags, kind);
  if (program.empty()) {
    return {};
  }
  std::vector<std::string> command;
  if (is_for_python(program, kind, facts)) {
    if (flags.needs_program && !kind.module && !is_file(facts.working_directory / program)) {
      throw Error(Errc::no_program, "cannot find program " + program);
    }
    command = {find_python(environment, facts)};
    if (kind.unbuffered) {
      command.emplace_back("-u");
    }
    if (kind.module) {
      command.emplace_back("-m");
    }
    command.push_back(program);
  } else {
    try {
      command = {find_executable(program, environment, facts)};
      check_interpreter(command.front(), facts);
    } catch (const Error& error) {
      if (flags.needs_program || error.code() != Errc::no_program) {
        throw;
      }
      command = {program};
    }
  }
  command.insert(command.end(), flags.arguments.begin(), flags.arguments.end());
  return command;
}

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
