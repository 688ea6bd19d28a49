#pragma once

#include "supervision/worker_process.hpp"

#include <boost/process/v2/posix/default_launcher.hpp>
#include <sys/resource.h>

#include <optional>
#include <vector>

namespace acc::launcher {

/// What a new worker does between fork and exec, where no memory may be allocated: an initializer
/// of Boost.Process. Refers to the WorkerSpec it was made from.
class ChildSetup {
 public:
  /// `descriptors`: the worker's limit on them; empty: the launcher's.
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
  int numa_node_;
  std::optional<rlimit> descriptors_;
  std::vector<unsigned long> core_mask_;  ///< a bit a core; empty: not bound
};

}  // namespace acc::launcher
