// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace acc::launcher::output {

/// Copies the lines that contain one of `words` to a file, with their prefix. Workers and streams
/// may share a file. An empty list of words disables the filter.
struct LineFilter {
  std::vector<std::string> words = {};
  std::string file = {};
};

/// Destinations of one output stream of a worker. Without file and console the output is discarded.
struct StreamTarget {
  std::string file = {};   ///< log file; empty: none
  bool console = true;     ///< shown on the launcher's own stream, with a prefix per line
  LineFilter filter = {};  ///< applies to lines that go to the console
};

/// Destinations of a worker's stdout and stderr.
struct WorkerTargets {
  StreamTarget out = {};
  StreamTarget err = {};
};

/// Returns the number of descriptors that an OutputMux needs for the output of these workers: one
/// pipe per stream that it reads, and one per file that it writes.
std::size_t descriptors_of(const std::vector<WorkerTargets>& workers);

}  // namespace acc::launcher::output
