#pragma once

#include "supervision/worker_record.hpp"

#include <cstdint>
#include <string>

namespace acc::launcher {

/// What the kernel says about the ends of workers, in words for the report. Made before they start,
/// since some of it is the growth of a counter.
class KernelFacts {
 public:
  KernelFacts();

  /// Why a worker that was killed had to go, or where its core dump is; empty: nothing is known.
  [[nodiscard]] std::string cause(const WorkerRecord& worker,
                                  const std::string& working_directory) const;

 private:
  std::int64_t oom_kills_before_ = 0;
};

}  // namespace acc::launcher
