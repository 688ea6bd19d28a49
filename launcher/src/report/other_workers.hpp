#pragma once

#include "report/job_report.hpp"

#include <string>

namespace acc::launcher {

/// The part of the report's text below the first failure: a line for each other worker that failed
/// by itself, in order of time; those that are still there; how the rest ended, machines of equal
/// fate together; machines that said nothing. Empty where there is nothing to say.
std::string other_workers(const JobReport& report);

}  // namespace acc::launcher
