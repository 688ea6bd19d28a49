// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "commands/plot/metrics_file.hpp"

#include <span>
#include <string>
#include <vector>

namespace acc::launcher::commands {

/// Returns multiples of 1, 2 or 5 times a power of ten that lie within [low, high], at most eight.
std::vector<double> ticks(double low, double high);

/// Returns one page of HTML without references to other files: a chart for each metric, with a line
/// for each run that has it. `metrics` are keys of Run::series. Values that are not finite
/// interrupt a line and are counted below the chart.
std::string metrics_page(std::span<const Run> runs, std::span<const std::string> metrics);

}  // namespace acc::launcher::commands
