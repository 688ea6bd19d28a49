#pragma once

#include "report/machine_report.hpp"

#include <cstddef>
#include <optional>
#include <vector>

namespace acc::launcher {

/// The worker that the failure of an attempt is put down to.
struct RootCause {
  /// Index of the worker; empty where none failed by itself. It may have ended with status 0, or
  /// still be running, where the others failed because of that.
  std::optional<std::size_t> worker;
  /// False while other workers have to end before it is certain.
  bool is_certain = true;
};

/// Decides from how the workers ended and from what their failed collectives say: a worker that
/// failed because of another rank names that rank, which may itself name another one. Where nobody
/// is named, the earliest failure is the cause that is not the loss of a connection to some peer. Where
/// there is only such loss: ranks that called another collective than their peers; then a worker that
/// ended with status 0 before; then the earliest failure.
///
/// A worker without an end is one that still runs or could not be killed. `is_whole_job`: there are
/// no workers besides these.
RootCause root_cause(const std::vector<WorkerReport>& workers, bool is_whole_job);

/// The exit status of a job that failed because of `cause`: that of this worker if it failed by
/// itself, else that of the first worker that did.
int exit_status(const std::vector<WorkerReport>& workers, std::size_t cause);

}  // namespace acc::launcher
