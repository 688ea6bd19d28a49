// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/error.hpp"

#include <string>

// Files in the Trace Event Format (a JSON array of events), which Chrome and Perfetto read and to
// which all processes of a machine append. Times are microseconds of the host's steady clock, which
// these processes share.
namespace acc {

/// The disk of a trace is full or fails. The file was a possible one, and what is traced goes on.
class TraceLost : public Error {
 public:
  using Error::Error;
};

/// Creates a file without events, or removes those of an existing one. Throws Error(config) with
/// the path and the reason if it cannot be written: TraceLost if that is the disk's.
void create_trace_file(const std::string& path);

/// Appends events, each of which is a line that ends with ",\n". The file is valid JSON after every
/// call, also after one that fails. Creates the file if it does not exist. Throws as above.
void append_trace_events(const std::string& path, std::string lines);

/// Removes the file with which the processes lock the trace (`PATH.lock`). For the last of them.
void end_trace_file(const std::string& path) noexcept;

/// Returns the event that relates the steady clock to the time of day, so that files of several
/// machines can be merged. `process`: number of a process of the trace that is named in the file.
std::string trace_clock_event(int process);

}  // namespace acc
