#pragma once

#include "supervision/cgroup.hpp"

#include <boost/asio/detail/throw_error.hpp>  // Boost.Process 1.81 forgets it
#include <boost/process/v2/posix/default_launcher.hpp>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>
#include <vector>

namespace acc::launcher {

/// A launcher of Boost.Process whose child begins in a control group. It gives back a pid alone:
/// Boost's process object watches by a SIGCHLD handler of its own, for which each needs a loop with
/// five descriptors.
class WorkerLauncher : public boost::process::v2::posix::default_launcher {
 public:
  struct Child {
    pid_t pid = -1;  ///< -1: no process was to be had
    int error = 0;   ///< errno; with a pid: it could not become the program, and is to be reaped
  };

  explicit WorkerLauncher(const Cgroup* cgroup) : cgroup_(cgroup) {}

  /// `setup`: what the child does before exec, in that order, as Boost.Process's initializers do.
  template <typename... Initializers>
  Child start(const std::string& program, const std::vector<std::string>& arguments,
              const std::vector<const char*>& environment, Initializers&&... setup) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
      return {-1, errno};
    }
    const UniqueFd told(ends[0]);
    UniqueFd telling(ends[1]);
    const boost::process::v2::filesystem::path path(program);
    const char* const* const argv = build_argv_(path, arguments);
    const pid_t child = cgroup_ != nullptr ? cgroup_->fork_into() : ::fork();
    if (child == 0) {
      int error = first_error(path, argv, setup...);
      if (error == 0) {
        ::execve(path.c_str(), const_cast<char* const*>(argv),
                 const_cast<char* const*>(environment.data()));
        error = errno;
      }
      [[maybe_unused]] const ssize_t written = ::write(telling.get(), &error, sizeof error);
      ::_exit(127);
    }
    if (child < 0) {
      return {-1, errno};
    }
    telling.reset();
    return {child, error_from(told.get())};
  }

 private:
  template <typename Path, typename... Initializers>
  int first_error(const Path& path, const char* const* argv, Initializers&... setup) {
    int error = 0;
    static_cast<void>(
        ((error = setup.on_exec_setup(*this, path, argv).value(), error == 0) && ...));
    return error;
  }

  /// The end of the pipe without a word is exec's.
  static int error_from(int told) noexcept {
    int error = 0;
    while (::read(told, &error, sizeof error) < 0 && errno == EINTR) {
    }
    return error;
  }

  const Cgroup* cgroup_;
};

}  // namespace acc::launcher
