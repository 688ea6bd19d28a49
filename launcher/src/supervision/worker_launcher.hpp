#pragma once

#include "acc/base/error.hpp"
#include "supervision/cgroup.hpp"

#include <boost/asio/detail/throw_error.hpp>  // Boost.Process 1.81 does not include it
#include <boost/process/v2/posix/default_launcher.hpp>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

namespace acc::launcher {

/// An errno value that a forked child passes to its parent through shared memory. Unlike the usual
/// close-on-exec pipe, the parent does not have to wait until the child has called exec.
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
  /// Returns the child's error, or 0 if there was none. Call it after the child has ended.
  [[nodiscard]] int get() const noexcept { return *value_; }

 private:
  int* value_;
};

/// A launcher of Boost.Process that starts the child in a control group. It returns a pid instead
/// of Boost's process object, which watches the child by its own SIGCHLD handler and so would need
/// an event loop with five descriptors per worker.
class WorkerLauncher : public boost::process::v2::posix::default_launcher {
 public:
  explicit WorkerLauncher(const Cgroup* cgroup) : cgroup_(cgroup) {}

  /// Returns the child's pid, or -1 and sets errno. `setup`: Boost.Process initializers, whose
  /// on_exec_setup the child calls in this order before exec. If one of them or exec fails, the
  /// child stores the errno in `exec_error` and exits with 127.
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
