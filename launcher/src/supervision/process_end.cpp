// SPDX-License-Identifier: Apache-2.0
#include "supervision/process_end.hpp"

#include <sys/wait.h>

#include <cerrno>
#include <cstring>

namespace acc::launcher::supervision {
namespace {

/// Returns name and number, "SIGSEGV (signal 11)", or just "signal 64" if there is no name.
std::string numbered_name(int signal) {
  const std::string number = "signal " + std::to_string(signal);
  const std::string name = signal_name(signal);
  return name == number ? number : name + " (" + number + ")";
}

}  // namespace

ProcessEnd ProcessEnd::from_wait_status(int wait_status) noexcept {
  if (WIFSIGNALED(wait_status)) {
    return {Kind::killed, WTERMSIG(wait_status), WCOREDUMP(wait_status) != 0};
  }
  return {Kind::exited, WEXITSTATUS(wait_status), false};
}

int ProcessEnd::shell_status() const noexcept {
  switch (kind) {
    case Kind::exited: return value;
    case Kind::killed: return 128 + value;
    case Kind::not_executed: return value == ENOENT ? 127 : 126;
  }
  return 1;
}

std::string ProcessEnd::describe() const {
  switch (kind) {
    case Kind::exited: return "exited with code " + std::to_string(value);
    case Kind::killed:
      return "killed by " + numbered_name(value) + (core_dumped ? ", core dumped" : "");
    case Kind::not_executed: return std::string("could not be executed: ") + std::strerror(value);
  }
  return {};
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(signal);
}

}  // namespace acc::launcher::supervision
