#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace acc::launcher {

/// Lines with one of the words also go to a file, with their prefix. Workers and streams may share
/// it. No words: no line.
struct LineFilter {
  std::vector<std::string> words = {};
  std::string file = {};
};

/// Where one output stream of a worker goes; nowhere is possible too.
struct StreamTarget {
  std::string file = {};   ///< empty: none
  bool console = true;     ///< the launcher's own stream, with the prefix before each line
  LineFilter filter = {};  ///< of what goes to the console
};

struct WorkerTargets {
  StreamTarget out = {};
  StreamTarget err = {};
};

/// How many descriptors a mux needs for the output of these workers: a pipe for each stream that it
/// reads, the files that it writes.
std::size_t descriptors_of(const std::vector<WorkerTargets>& workers);

}  // namespace acc::launcher
