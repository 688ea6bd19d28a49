#pragma once

#include "worker_process.hpp"

#include <array>
#include <vector>

namespace acc::launcher {

/// All that a new worker needs between fork and exec, where no memory may be allocated. Refers to
/// the WorkerSpec it was made from.
class ChildSetup {
 public:
  /// `streams`: what becomes its stdin, stdout and stderr; -1: the launcher's own.
  ChildSetup(const WorkerSpec& spec, std::array<int, 3> streams);

  /// Turns the calling process, a fork of the launcher, into the worker. Returns the errno of what
  /// could not be done.
  [[nodiscard]] int become_worker() const noexcept;

 private:
  [[nodiscard]] bool take_streams() const noexcept;
  void bind() const noexcept;

  const WorkerSpec& spec_;
  std::array<int, 3> streams_;
  pid_t parent_;
  bool takes_terminal_;
  std::vector<std::string> environment_text_;
  std::vector<char*> arguments_;
  std::vector<char*> environment_;
  std::vector<unsigned long> core_mask_;  ///< a bit a core; empty: not bound
};

}  // namespace acc::launcher
