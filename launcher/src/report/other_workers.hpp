// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "report/job_report.hpp"

#include <string>

namespace acc::launcher::report {

/// Returns the part of the text report that follows the root cause: one line for each other worker
/// that failed by itself, in order of time; workers that could not be killed; how the rest ended,
/// with machines grouped whose workers ended alike; machines that sent no report. Empty if there
/// are no other workers.
std::string other_workers(const JobReport& report);

}  // namespace acc::launcher::report
