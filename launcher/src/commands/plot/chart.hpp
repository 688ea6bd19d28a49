// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher::commands {

/// One value of a metrics file over the steps, in the order of the lines.
struct Series {
  struct Point {
    double step = 0.0;
    double value = 0.0;  ///< NaN or infinite where the file says so, or holds null
  };
  std::vector<Point> points;
};

/// The numbers of a metrics file: one JSON object per line, as `train_gpt --metrics` writes them.
struct Run {
  std::string name;  ///< the file's path as the user wrote it
  std::map<std::string, Series> series;
  std::vector<std::string> remarks;  ///< what was left out, each a sentence with the line's number
};

/// Reads all numbers of the outermost object of each line. `step` is the position on the x axis;
/// lines without it are numbered from 1. `memory_bytes`, if the line lacks it, is the largest
/// memory of a rank in `ranks`: on the device if there is one, otherwise resident. NaN, Infinity
/// and -Infinity, as Python writes them, are accepted. A last line without a newline that is not
/// complete is left out with a remark, since its writer may still be running. Throws
/// Error(not_found) if the file cannot be opened, and Error(config) with file and line if another
/// line is not a JSON object, or no line is complete.
Run read_metrics(const std::filesystem::path& path);

/// Returns multiples of 1, 2 or 5 times a power of ten that lie within [low, high], at most eight.
std::vector<double> ticks(double low, double high);

/// Escapes the characters that have a meaning in HTML.
std::string html_text(std::string_view text);

/// Returns the chart of a metric, a key of Run::series that at least one run has: a part of
/// html_page.
std::string chart_section(std::span<const Run> runs, const std::string& metric);

/// Returns a page of HTML without references to other files, with the style and the script of
/// charts. It is readable on a phone and in dark mode.
std::string html_page(std::string_view title, std::string_view body);

/// Returns one page of HTML without references to other files: a chart for each metric, with a line
/// for each run that has it. `metrics` are keys of Run::series. Values that are not finite
/// interrupt a line and are counted below the chart.
std::string metrics_page(std::span<const Run> runs, std::span<const std::string> metrics);

}  // namespace acc::launcher::commands
