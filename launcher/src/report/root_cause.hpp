// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "report/machine_report.hpp"

#include <cstddef>
#include <optional>
#include <vector>

namespace acc::launcher::report {

/// The worker that caused the failure of an attempt.
struct RootCause {
  /// Index of the worker; empty if none failed by itself. The worker may have ended with status 0,
  /// or may still be running, if that is what the others failed because of.
  std::optional<std::size_t> worker;
  /// False if the decision may change when other workers end.
  bool is_certain = true;
};

/// Decides which worker is the root cause, from how the workers ended and from the errors of their
/// failed collectives. The first rule that applies decides:
///
///  1. The error of a failed collective names the rank at fault, whose own error may name a further
///     rank. The rank at the end of most of these chains is the cause. A chain does not count if
///     the launcher ended that rank before its peer failed, unless the peer waited for too long.
///  2. Otherwise the earliest failure that is not the loss of a connection to a peer.
///  3. If all workers that failed have lost a connection: the first worker that destroyed its model
///     without an error and ended with status 0; a rank that called a different collective than its
///     peers; a rank that the others waited for, if the chains form a cycle; the first worker that
///     ended with status 0 before the first failure; the earliest failure.
///
/// A worker without an end is still running or could not be killed. `is_whole_job`: `workers` are
/// those of all machines.
RootCause root_cause(const std::vector<WorkerReport>& workers, bool is_whole_job);

/// Returns the exit status of a job whose root cause is `cause`: that of this worker if it failed
/// by itself, else that of the first worker that did.
int exit_status(const std::vector<WorkerReport>& workers, std::size_t cause);

}  // namespace acc::launcher::report
