// SPDX-License-Identifier: Apache-2.0
#include "monitor/report_lines.hpp"

#include "monitor/json_line.hpp"

#include <nlohmann/json.hpp>

#include <limits>
#include <utility>

namespace acc::launcher::monitor {
namespace {

using Json = nlohmann::json;

/// Sets a value of a report. A null is a number that is not finite; other values are no metrics.
void set_value(TrainingMetrics& metrics, const std::string& name, const Json& value) {
  if (value.is_number()) {
    set_metric(metrics, name, value.get<double>());
  } else if (value.is_null()) {
    set_metric(metrics, name, std::numeric_limits<double>::quiet_NaN());
  }
}

}  // namespace

void ReportLines::take(std::string_view bytes, std::size_t max_lines) {
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    const std::string_view part = bytes.substr(0, end);
    bytes.remove_prefix(end == std::string_view::npos ? bytes.size() : end + 1);
    is_too_long_ = is_too_long_ || line_.size() + part.size() > kMaxLineBytes;
    if (is_too_long_) {
      line_.clear();
    } else {
      line_ += part;
    }
    if (end == std::string_view::npos) {
      return;
    }
    const std::string line = std::exchange(line_, {});
    if (std::exchange(is_too_long_, false) || max_lines == 0) {
      ++num_refused_;
    } else if (!line.empty()) {
      --max_lines;
      take_line(line);
    }
  }
}

void ReportLines::take_line(const std::string& line) {
  const Json report = json_line(line);
  if (report.is_discarded()) {
    ++num_refused_;
    return;
  }
  ++num_reports_;
  for (const auto& [name, value] : report.items()) {
    if (name == "memory" && value.is_object()) {
      for (const auto& [category, nbytes] : value.items()) {
        set_value(metrics_, "memory." + category, nbytes);
      }
    } else {
      set_value(metrics_, name, value);
    }
  }
}

}  // namespace acc::launcher::monitor
