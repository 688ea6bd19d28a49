// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "commands/trace/trace_file.hpp"

#include <span>
#include <string>
#include <vector>

namespace acc::launcher::commands {

/// How the clock of a trace file was aligned to that of the first file.
struct ClockShift {
  double microseconds = 0.0;  ///< added to the times of the file
  /// Waits that ended together on both machines and corrected the machines' own clocks; 0 if there
  /// were too few.
  int waits = 0;
  bool has_clock = false;  ///< false: a file does not state the time of its machine
};

/// Returns the shift of every file. First by the time of day that each file states. Then by waits:
/// ranks that wait for one collective go on at the same moment, so the median difference between
/// the ends of such waits is the error of the clocks. Needs at least three waits.
std::vector<ClockShift> align(std::span<const TraceFile> traces);

/// Returns one trace, a JSON array with one event per line, of all files with shifted times, and
/// with arrows from the rank that entered a collective last to those that waited in it.
std::string merged(std::span<const TraceFile> traces, std::span<const ClockShift> shifts);

}  // namespace acc::launcher::commands
