// SPDX-License-Identifier: Apache-2.0
// Fuzzes the lines that a worker writes to its report descriptor: the values do not depend on how
// the bytes are split, and stay within their limits.
#include "monitor/report_lines.hpp"

#include "acc/base/flight_record.hpp"
#include "input.hpp"

#include <cstring>

namespace {

using acc::fuzz::Cuts;
using acc::fuzz::Input;
using acc::fuzz::require;
using acc::launcher::monitor::ReportLines;

/// The metrics as they are in a flight record, because values may be NaN.
acc::flight::file::FileMetrics filed(const acc::TrainingMetrics& metrics) {
  acc::flight::file::FileMetrics file;
  std::memset(&file, 0, sizeof file);
  acc::flight::to_file({.reported_us = 1, .values = metrics}, file);
  return file;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  Cuts cuts(input);
  std::string_view bytes = input.rest();
  ReportLines whole;
  whole.take(bytes);
  ReportLines cut;
  while (!bytes.empty()) {
    cut.take(cuts.take_piece(bytes));
  }
  const auto& metrics = whole.metrics();
  require(metrics.step.value_or(0) >= 0, "a step is not negative");
  require(metrics.memory.size() <= acc::TrainingMetrics::kMaxEntries &&
              metrics.values.size() <= acc::TrainingMetrics::kMaxEntries,
          "the number of values is limited");
  for (const auto& [name, nbytes] : metrics.memory) {
    require(acc::is_metric_name(name) && nbytes >= 0, "memory has a name and is not negative");
  }
  for (const auto& [name, value] : metrics.values) {
    require(acc::is_metric_name(name), "a value has a printable name");
  }
  const auto of_whole = filed(metrics);
  const auto of_cut = filed(cut.metrics());
  require(std::memcmp(&of_whole, &of_cut, sizeof of_whole) == 0,
          "values do not depend on how the bytes are split");
  require(whole.num_reports() == cut.num_reports() && whole.num_refused() == cut.num_refused(),
          "counts do not depend on how the bytes are split");
  const auto decoded = acc::flight::from_file(of_whole);
  require(
      decoded && decoded->values.step == metrics.step && decoded->values.memory == metrics.memory,
      "a flight record keeps the values");
  return 0;
}
