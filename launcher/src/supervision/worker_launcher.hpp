#pragma once

#include "acc/base/error.hpp"
#include "supervision/cgroup.hpp"

#include <boost/asio/detail/throw_error.hpp>  // Boost.Process 1.81 forgets it
#include <boost/process/v2/posix/default_launcher.hpp>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

namespace acc::launcher {

/// An errno that a child leaves for its parent, in memory they share: nobody has to wait for exec.
class ExecError {
 public:
  ExecError()
      : value_(static_cast<int*>(::mmap(nullptr, sizeof(int), PROT_READ | PROT_WRITE,
                                        MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    if (value_ == MAP_FAILED) {
      throw Error(Errc::process, std::string("mmap failed: ") + std::strerror(errno));
    }
  }
  ExecError(const ExecError&) = delete;
  ExecError& operator=(const ExecError&) = delete;
  ~ExecError() { ::munmap(value_, sizeof(int)); }

  void set(int error) const noexcept { *value_ = error; }
  /// 0: there was none. To be asked when the child has ended.
  [[nodiscard]] int get() const noexcept { return *value_; }

 private:
  int* value_;
};

/// A launcher of Boost.Process whose child begins in a control group. It gives back a pid alone:
/// Boost's process object watches by a SIGCHLD handler of its own, for which each needs a loop with
/// five descriptors.
class WorkerLauncher : public boost::process::v2::posix::default_launcher {
 public:
  explicit WorkerLauncher(const Cgroup* cgroup) : cgroup_(cgroup) {}

  /// The pid, or -1 with errno. `setup`: what the child does before exec, in that order, as
  /// Boost.Process's initializers do; what fails there or in exec goes to `exec_error`.
  template <typename... Initializers>
  pid_t start(const std::string& program, const std::vector<std::string>& arguments,
              const std::vector<const char*>& environment, const ExecError& exec_error,
              Initializers&&... setup) {
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
      exec_error.set(error);
      ::_exit(127);
    }
    return child;
  }

 private:
  template <typename Path, typename... Initializers>
  int first_error(const Path& path, const char* const* argv, Initializers&... setup) {
    int error = 0;
    static_cast<void>(
        ((error = setup.on_exec_setup(*this, path, argv).value(), error == 0) && ...));
    return error;
  }

  const Cgroup* cgroup_;
};

}  // namespace acc::launcher
