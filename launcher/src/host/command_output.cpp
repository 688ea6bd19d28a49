// SPDX-License-Identifier: Apache-2.0
#include "host/command_output.hpp"

#include "acc/base/unique_fd.hpp"
#include "acc/base/variables.hpp"
#include "spawn/child_launcher.hpp"
#include "spawn/create_child.hpp"
#include "spawn/user.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>

namespace acc::launcher::host {
namespace {

using Clock = std::chrono::steady_clock;

/// Appends everything that comes from a pipe to `text`. False on an error, or if the deadline
/// passes before the end.
bool read_all(int pipe, Clock::time_point deadline, std::string& text) {
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd ready{pipe, POLLIN, 0};
    const int events = left.count() <= 0 ? 0 : ::poll(&ready, 1, static_cast<int>(left.count()));
    if (events < 0 && errno == EINTR) {
      continue;
    }
    std::array<char, 4096> buffer;
    const ssize_t count = events <= 0 ? -1 : ::read(pipe, buffer.data(), buffer.size());
    if (count <= 0) {
      return count == 0;
    }
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
}

/// Makes the child a process of a user.
struct RunAs {
  const spawn::User& user;
  boost::process::v2::error_code on_exec_setup(const spawn::ChildLauncher&,
                                               const boost::process::v2::filesystem::path&,
                                               const char* const*) const {
    return {spawn::become(user) ? 0 : errno, boost::process::v2::system_category()};
  }
};

pid_t start(const std::vector<std::string>& command, boost::process::v2::process_stdio& streams,
            const spawn::User* user) {
  spawn::ChildLauncher launcher;
  const std::vector<std::string> arguments(command.begin() + 1, command.end());
  if (user == nullptr || user->is_own()) {
    return launcher.start(command.front(), arguments, streams);
  }
  // The other user can read the memory and the variables of this child.
  const std::string search = "PATH=" + process_variable("PATH").value_or("");
  const std::array<const char*, 2> variables{search.c_str(), nullptr};
  launcher.env = variables.data();
  return launcher.start(command.front(), arguments, streams, RunAs{*user});
}

}  // namespace

std::optional<std::string> command_output(const std::vector<std::string>& command,
                                          std::chrono::milliseconds limit,
                                          const spawn::User* user) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    return std::nullopt;
  }
  const UniqueFd output(ends[0]);
  UniqueFd input(ends[1]);
  boost::process::v2::process_stdio streams{nullptr, {input.get()}, nullptr};
  const pid_t pid = start(command, streams, user);
  if (pid < 0) {
    return std::nullopt;
  }
  input.reset();  // else the pipe would never report its end
  const auto deadline = Clock::now() + limit;
  std::string text;
  std::optional<int> status;
  if (read_all(output.get(), deadline, text)) {  // it may run on without its stdout
    status = spawn::reap_within(
        pid, std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()));
  }
  if (!status) {
    ::kill(pid, SIGKILL);
    spawn::reap_within(pid, spawn::kTimeAfterKill);
  }
  return status && WIFEXITED(*status) && WEXITSTATUS(*status) == 0 ? std::optional(text)
                                                                   : std::nullopt;
}

}  // namespace acc::launcher::host
