// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "supervision/worker_process.hpp"

#include <boost/process/v2/posix/default_launcher.hpp>
#include <sys/resource.h>

#include <optional>
#include <vector>

namespace acc::launcher::supervision {

/// Prepares a new worker between fork and exec, as an initializer of Boost.Process. The code there
/// must not allocate memory, because another thread may have held the allocator's lock at the time
/// of the fork; the constructor therefore computes everything in the parent.
class ChildSetup {
 public:
  /// `descriptors`: the worker's limit on file descriptors; empty keeps the launcher's limit.
  ChildSetup(const WorkerSpec& spec, const std::optional<rlimit>& descriptors);

  boost::process::v2::error_code on_exec_setup(boost::process::v2::posix::default_launcher&,
                                               const boost::process::v2::filesystem::path&,
                                               const char* const*) const noexcept {
    become_worker();
    return {};
  }

 private:
  void become_worker() const noexcept;
  void bind() const noexcept;

  pid_t parent_;
  pid_t process_group_;
  int reports_;
  int numa_node_;
  std::optional<rlimit> descriptors_;
  std::vector<unsigned long> core_mask_;  ///< one bit per CPU core; empty: any core
};

}  // namespace acc::launcher::supervision
