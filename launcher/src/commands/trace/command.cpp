// SPDX-License-Identifier: Apache-2.0
// acclaunch trace: works on the timelines that ACC_TRACE makes (docs/watching.md).
#include "acc/base/atomic_file.hpp"
#include "acc/base/error.hpp"
#include "acc/base/json.hpp"
#include "acc/base/log.hpp"
#include "acc/base/text.hpp"
#include "commands/commands.hpp"
#include "commands/options.hpp"
#include "commands/trace/summary.hpp"
#include "commands/trace/trace_file.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

namespace acc::launcher::commands {
namespace {

/// Prints how the clock of each file after the first was aligned.
void print_shifts(std::span<const TraceFile> traces, std::span<const ClockShift> shifts) {
  for (std::size_t i = 1; i < traces.size(); ++i) {
    const ClockShift& shift = shifts[i];
    std::string how = "as the clocks of the machines say";
    if (shift.waits > 0) {
      how = fmt::format("by the ends of {} common waits", shift.waits);
    } else if (!shift.has_clock) {
      how = "not aligned: no common waits, and a file without the time of its machine";
    }
    notice(
        Component::launcher, LogLevel::info, "trace: ",
        fmt::format("{}: shifted by {:.3f} ms against {}, {}", printable(traces[i].path.string()),
                    shift.microseconds / 1000.0, printable(traces.front().path.string()), how));
  }
}

void merge(std::span<const std::string> paths, const std::string& output, Overwrite overwrite) {
  if (output.empty()) {
    throw Error(Errc::invalid_argument, "acclaunch trace merge: --output FILE is missing");
  }
  check_free(output, overwrite);
  const std::vector<TraceFile> traces = read_traces(paths);
  const std::vector<ClockShift> shifts = align(traces);
  write_file(output, merged(traces, shifts), overwrite);
  print_shifts(traces, shifts);
}

}  // namespace

int trace_command(std::span<const std::string> arguments) {
  OptionParser parser(
      "acclaunch trace merge|summary PATH...: works on timelines that ACC_TRACE made. `merge` "
      "makes "
      "one\nfile for Perfetto of those of several machines, with aligned clocks. `summary` prints "
      "where the time\nof each rank went. PATH is a file, or a folder of .json files.",
      "acclaunch trace");
  std::string action;
  std::vector<std::string> paths;
  std::string output;
  bool as_json = false;
  bool overwrite = false;
  parser.add_option("action", action, "what to do").required().check_member({"merge", "summary"});
  parser.add_option("paths", paths, "trace files, or folders of them").required();
  parser.add_option("-o,--output", output, "merge: the file to write");
  parser.add_flag("--overwrite", overwrite, "merge: replace an existing file");
  parser.add_flag("--json", as_json, "summary: print a JSON list, a list element for each rank");
  parser.parse(arguments);
  if (action == "merge") {
    merge(paths, output, overwrite ? Overwrite::yes : Overwrite::no);
    return 0;
  }
  const std::vector<TraceFile> traces = read_traces(paths);
  const std::vector<RankTimes> ranks = summarize(traces);
  const std::string text = as_json
                               ? text_of_json(summary_json(ranks), 2) + "\n"
                               : summary_text(ranks) + summary_text(summarize_launchers(traces));
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace acc::launcher::commands
