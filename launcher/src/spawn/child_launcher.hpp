// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spawn/create_child.hpp"

// Boost.Process 1.81 does not include the first two.
#include <boost/asio/detail/throw_error.hpp>
#include <boost/process/v2/detail/last_error.hpp>
#include <boost/process/v2/posix/default_launcher.hpp>
#include <boost/process/v2/stdio.hpp>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

namespace acc::launcher::spawn {

/// Starts child processes: a launcher of Boost.Process v2, which takes its initializers. All
/// children of acclaunch that run another program are started by it. It differs from
/// `default_launcher` in three ways:
/// - It returns a pid. Boost's process object watches the child by its own SIGCHLD handler, and so
///   would need an event loop with five descriptors for each child.
/// - The child shares the memory of this process until it calls exec (`create_child`).
/// - A child that cannot call exec ends by _exit. By exit() it would write the output that this
///   process has buffered a second time.
class ChildLauncher : public boost::process::v2::posix::default_launcher {
 public:
  /// `cgroup`: the folder of the control group in which children start; -1: that of this process.
  explicit ChildLauncher(int cgroup = -1) : cgroup_(cgroup) {}

  /// Starts the program at the path `program`, with the environment `env` (that of this process
  /// unless it is set). Returns the child's pid, or -1 and sets errno. The child calls
  /// `on_exec_setup` of each initializer that has it, in this order, then exec. If one of them or
  /// exec fails, it calls `on_exec_error` of each initializer that has it, and exits with 127.
  /// Neither may allocate memory.
  template <typename... Initializers>
  pid_t start(const std::string& program, const std::vector<std::string>& arguments,
              Initializers&&... initializers) {
    const boost::process::v2::filesystem::path path(program);
    const char* const* const argv = build_argv_(path, arguments);
    auto become_program = [&] {
      boost::process::v2::error_code error;
      [[maybe_unused]] const auto set_up = [&](auto& initializer) {
        if constexpr (requires { initializer.on_exec_setup(*this, path, argv); }) {
          error = error ? error : initializer.on_exec_setup(*this, path, argv);
        }
      };
      [[maybe_unused]] const auto report = [&](auto& initializer) {
        if constexpr (requires { initializer.on_exec_error(*this, path, argv, error); }) {
          initializer.on_exec_error(*this, path, argv, error);
        }
      };
      (set_up(initializers), ...);
      if (!error) {
        ::execve(path.c_str(), const_cast<char* const*>(argv), const_cast<char* const*>(env));
        error.assign(errno, boost::process::v2::system_category());
      }
      (report(initializers), ...);
      ::_exit(127);
    };
    pid = create_child(
        cgroup_, [](void* child) { (*static_cast<decltype(become_program)*>(child))(); },
        &become_program);
    return pid;
  }

 private:
  int cgroup_;
};

}  // namespace acc::launcher::spawn
