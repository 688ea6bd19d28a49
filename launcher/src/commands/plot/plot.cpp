// SPDX-License-Identifier: Apache-2.0
// acclaunch plot: draws metrics files as a page of charts (docs/plot.md).
#include "acc/base/atomic_file.hpp"
#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "acc/base/text.hpp"
#include "commands/commands.hpp"
#include "commands/options.hpp"
#include "commands/plot/chart.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

namespace acc::launcher::commands {
namespace {

/// The charts of a page if --metric is not given, as far as a run has them.
const std::vector<std::string> kUsualMetrics = {"loss", "tokens_per_s", "memory_bytes", "grad_norm",
                                                "lr"};

/// Returns the metrics to draw. Throws Error(config) if a wanted metric is in no run, or none of
/// the usual ones is.
std::vector<std::string> metrics_of(const std::vector<Run>& runs,
                                    const std::vector<std::string>& wanted) {
  std::set<std::string> present;
  for (const Run& run : runs) {
    for (const auto& [key, series] : run.series) {
      present.insert(key);
    }
  }
  std::vector<std::string> metrics;
  for (const std::string& metric : wanted.empty() ? kUsualMetrics : wanted) {
    if (present.contains(metric)) {
      metrics.push_back(metric);
    } else if (!wanted.empty()) {
      throw Error(
          Errc::invalid_argument,
          fmt::format("plot: --metric {}: no run has it, expected one of {}", printable(metric),
                      printable(fmt::format("{}", fmt::join(present, ", ")))));
    }
  }
  if (metrics.empty()) {
    throw Error(Errc::not_found,
                fmt::format("plot: the runs have none of {}; choose with --metric from {}",
                            fmt::join(kUsualMetrics, ", "),
                            printable(fmt::format("{}", fmt::join(present, ", ")))));
  }
  return metrics;
}

}  // namespace

int plot_command(std::span<const std::string> arguments) {
  OptionParser parser(
      "acclaunch plot RUN... --output FILE.html: draws metrics files, such as those of train_gpt "
      "--metrics,\nas one page with a chart for each metric and a line for each run.",
      "acclaunch plot");
  std::vector<std::string> paths;
  std::string output;
  std::vector<std::string> wanted;
  bool overwrite = false;
  parser.add_option("runs", paths, "metrics files: one JSON object per line").required();
  parser.add_option("-o,--output", output, "the page to write").required();
  parser
      .add_option("--metric", wanted,
                  "key to draw; may be repeated (loss, tokens_per_s, memory_bytes, grad_norm, lr)")
      .allow_extra_args(false);
  parser.add_flag("--overwrite", overwrite, "replace an existing page");
  parser.parse(arguments);
  std::vector<Run> runs;
  for (const std::string& path : paths) {
    runs.push_back(read_metrics(path));
    for (const std::string& remark : runs.back().remarks) {
      notice(Component::launcher, LogLevel::warn, "plot: ", printable(path) + ": " + remark);
    }
  }
  write_file(output, metrics_page(runs, metrics_of(runs, wanted)),
             overwrite ? Overwrite::yes : Overwrite::no);
  return 0;
}

}  // namespace acc::launcher::commands
