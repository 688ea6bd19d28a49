// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace acc::launcher::commands {
/// A file in the Trace Event Format, as ACC_TRACE makes it: the timelines of ranks whose times come
/// from one clock.
struct TraceFile {
  /// A complete span ("ph": "X"). Times in microseconds.
  struct Span {
    std::string name;
    std::string category;
    int rank = 0;
    double begin = 0.0;
    double end = 0.0;
  };

  std::filesystem::path path;
  std::vector<nlohmann::json> events;  ///< all events, as they were written
  /// Add this to a time to get microseconds since 1970, by the clock of the machine; empty if the
  /// file does not say so.
  std::optional<double> to_unix;

  [[nodiscard]] std::vector<Span> spans() const;
  /// The ranks that have events, ascending.
  [[nodiscard]] std::vector<int> ranks() const;
};

/// Reads trace files. A folder stands for its files that end in .json, by name. Throws
/// Error(not_found) if a path does not exist or a folder has no such file, and Error(config) with
/// the path if a file is not a JSON array of events, or a rank is in two files.
std::vector<TraceFile> read_traces(std::span<const std::string> paths);

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
