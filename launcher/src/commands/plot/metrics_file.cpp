// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/base/input_file.hpp"
#include "acc/base/text.hpp"
#include "commands/plot/chart.hpp"
#include "monitor/json_line.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <sstream>

namespace acc::launcher::commands {
namespace {

using Json = nlohmann::json;

double number_in(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : 0.0;
}

/// Returns the largest memory of a rank, in bytes; 0 if the line has no ranks.
double largest_rank_memory(const Json& object) {
  double largest = 0.0;
  if (const auto ranks = object.find("ranks"); ranks != object.end() && ranks->is_array()) {
    for (const Json& rank : *ranks) {
      if (rank.is_object()) {
        const double device = number_in(rank, "device_peak_bytes");
        largest = std::max(largest, device > 0.0 ? device : number_in(rank, "peak_rss_bytes"));
      }
    }
  }
  return largest;
}

void add_line(Run& run, const Json& object, std::size_t line_number) {
  const auto found = object.find("step");
  const double step = found != object.end() && found->is_number()
                          ? found->get<double>()
                          : static_cast<double>(line_number);
  for (const auto& [key, value] : object.items()) {
    if (key != "step" && (value.is_number() || value.is_null())) {
      run.series[key].points.push_back(
          {step, value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>()});
    }
  }
  if (!object.contains("memory_bytes")) {
    if (const double memory = largest_rank_memory(object); memory > 0.0) {
      run.series["memory_bytes"].points.push_back({step, memory});
    }
  }
}

}  // namespace

Run read_metrics(const std::filesystem::path& path) {
  std::istringstream file(read_data_file(path));
  Run run{path.string(), {}, {}};
  std::size_t line_number = 0;
  std::size_t complete = 0;
  for (std::string line; std::getline(file, line);) {
    ++line_number;
    if (trimmed(line).empty()) {
      continue;
    }
    const Json object = monitor::json_line(line);
    if (!object.is_discarded()) {
      add_line(run, object, line_number);
      ++complete;
    } else if (file.eof()) {  // no newline at its end
      run.remarks.push_back(fmt::format("line {} is not complete and was left out", line_number));
    } else {
      throw Error(Errc::config,
                  fmt::format("plot: {}, line {}: expected a JSON object, found {}",
                              printable(path.string()), line_number,
                              printable(line.size() > 60 ? line.substr(0, 60) + "…" : line)));
    }
  }
  if (complete == 0) {
    throw Error(Errc::config, fmt::format("plot: {}: no complete line; expected one JSON object "
                                          "per line, as `train_gpt --metrics` writes them",
                                          printable(path.string())));
  }
  return run;
}

}  // namespace acc::launcher::commands
