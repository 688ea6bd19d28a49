// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "supervision/process_end.hpp"

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace acc::launcher::supervision {

/// The supervisor's record of one worker.
struct WorkerRecord {
  int rank = 0;
  int local_rank = 0;
  pid_t pid = -1;
  std::optional<ProcessEnd> end;  ///< empty while it runs, and if it could not be killed
  std::chrono::system_clock::time_point ended_at;
  std::chrono::steady_clock::time_point died_at;  ///< the same moment, for comparisons
  bool told_to_end = false;  ///< the launcher signalled it to end while it was running
  int dies_of = 0;           ///< the signal sent for that, if it had its default action; else 0
  /// State of a worker that could not be killed, or that was stuck for longer than the limit: "in
  /// uninterruptible sleep (nfs_wait_bit)". A stuck worker may still end later; its times are those
  /// of the detection.
  std::string stuck;
  bool got_passed_signal = false;  ///< it was killed by a signal that the launcher passed on
  std::int64_t peak_memory = 0;    ///< peak resident bytes, counted by the kernel; 0: unknown
};

}  // namespace acc::launcher::supervision
