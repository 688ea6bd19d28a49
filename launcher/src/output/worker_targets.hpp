// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
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

/// Opens a file for appending, and creates it if it does not exist. Throws Error(config).
UniqueFd open_log(const std::string& path);

/// A log file with a copy of the workers' output. After the first write error (disk full) the file
/// is closed and further output is ignored; the job goes on.
class LogFile {
 public:
  explicit LogFile(std::string path) : path_(std::move(path)), file_(open_log(path_)) {}

  [[nodiscard]] const std::string& path() const noexcept { return path_; }

  /// Appends `bytes`. Returns 0, or the errno value of the write error, once.
  int write(std::string_view bytes);

 private:
  std::string path_;
  UniqueFd file_;
};

}  // namespace acc::launcher::output
