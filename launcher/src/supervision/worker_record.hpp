#pragma once

#include "supervision/process_end.hpp"

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace acc::launcher {

/// One worker as its supervisor knows it.
struct WorkerRecord {
  int rank = 0;
  int local_rank = 0;
  pid_t pid = -1;
  std::optional<ProcessEnd> end;  ///< empty: still there when it was given up
  std::chrono::system_clock::time_point ended_at;
  std::chrono::steady_clock::time_point died_at;  ///< the same moment, for comparisons
  bool told_to_end = false;  ///< the launcher asked it to end while it still ran
  int dies_of = 0;           ///< the signal it was told by, if its action was the default one
  /// What it was doing when it was given up, or had been for too long: "in uninterruptible sleep
  /// (nfs_wait_bit)". In the second case `end` may have come later, the times are those of before.
  std::string stuck;
  bool got_passed_signal =
      false;                     ///< `end` is a signal that the launcher passed on, as it was told
  std::int64_t peak_memory = 0;  ///< bytes resident at most, as the kernel counted; 0: unknown
};

}  // namespace acc::launcher
