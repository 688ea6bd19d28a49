// SPDX-License-Identifier: Apache-2.0
// The page of --report: the verdict, curves, and a table of units coloured by their distances.
#include "commands/compare/compare.hpp"
#include "commands/plot/chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>

namespace acc::launcher::commands::compare {
namespace {

/// Units that have a line in the chart of distances: those with the largest ones at the end.
constexpr std::size_t kMostLines = 6;

constexpr std::string_view kTableStyle = R"(
pre { overflow-x: auto; font-size: 0.85rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.15rem 0.6rem; text-align: right; white-space: nowrap; }
th:first-child { text-align: left; font-weight: normal; }
)";

/// The largest distances of a unit in all steps, by phase.
struct UnitDistances {
  std::string name;
  std::array<double, 4> distances{};  ///< forward, backward, gradient, weights
};

constexpr std::array kShown = {Phase::forward, Phase::backward, Phase::gradient, Phase::updated};

std::vector<UnitDistances> unit_distances(const Side& a, const Comparison& comparison) {
  std::vector<UnitDistances> units;
  std::map<std::string, std::size_t> index;
  for (const MeasuredStep& step : comparison.measured) {
    for (std::size_t phase = 0; phase < kShown.size(); ++phase) {
      for (const Measured& each : step.of(kShown[phase])) {
        const std::string unit = module_of(a, each.name);
        const auto [found, is_new] = index.try_emplace(unit, units.size());
        if (is_new) {
          units.push_back({unit});
        }
        double& largest = units[found->second].distances[phase];
        largest = std::max(largest, each.relative);
      }
    }
  }
  return units;
}

/// A cell, from transparent at 1e-7 to a full colour at 1, by the logarithm. Readable on white and
/// on black.
std::string cell(double distance) {
  const double strength = std::clamp((std::log10(std::max(distance, 1e-9)) + 7.0) / 7.0, 0.0, 1.0);
  return fmt::format("<td style=\"background:rgba(213,94,0,{:.2f})\">{}</td>", 0.85 * strength,
                     distance == 0.0 ? "0" : fmt::format("{:.1e}", distance));
}

std::string unit_table(const std::vector<UnitDistances>& units) {
  std::string html =
      "<section>\n<h2>largest distance of each unit, relative</h2>\n<div class=\"scroll\"><table>\n"
      "<tr><th>unit</th><th>outputs</th><th>their gradients</th><th>gradients of "
      "weights</th><th>weights</th></tr>\n";
  for (const UnitDistances& unit : units) {
    html += "<tr><th>" + html_text(unit.name.empty() ? "(the model)" : unit.name) + "</th>";
    for (const double distance : unit.distances) {
      html += cell(distance);
    }
    html += "</tr>\n";
  }
  return html + "</table></div>\n</section>\n";
}

void add_point(Run& run, const std::string& metric, std::size_t step, double value) {
  run.series[metric].points.push_back({static_cast<double>(step), value});
}

Run curves_of(const Side& side, std::size_t steps) {
  Run run{side.label + ": " + side.title, {}, {}};
  for (std::size_t i = 0; i < steps; ++i) {
    const Step& step = side.steps[i];
    if (step.loss) {
      add_point(run, "loss", i, *step.loss);
    }
    if (const double norm = step.gradient_norm(); norm > 0.0) {
      add_point(run, "norm of the gradients", i, norm);
    }
    if (!step.settings.empty()) {
      if (const auto lr = step.settings.begin()->second.find("lr");
          lr != step.settings.begin()->second.end()) {
        add_point(run, "learning rate", i, std::strtod(lr->second.c_str(), nullptr));
      }
    }
  }
  return run;
}

/// The distances of the weights of all units, and of the units that part most.
std::vector<Run> distance_curves(const Side& a, const Comparison& comparison,
                                 std::vector<UnitDistances> units) {
  const std::string metric = "distance of the weights, as power of ten";
  std::ranges::stable_sort(units, std::ranges::greater{},
                           [](const UnitDistances& unit) { return unit.distances.back(); });
  std::vector<Run> runs = {{"all units", {}, {}}};
  for (const UnitDistances& unit : units) {
    if (runs.size() <= kMostLines && unit.distances.back() > 0.0) {
      runs.push_back({unit.name, {}, {}});
    }
  }
  for (std::size_t i = 0; i < comparison.measured.size(); ++i) {
    std::map<std::string, double> largest;
    for (const Measured& each : comparison.measured[i].of(Phase::updated)) {
      double& distance = largest[module_of(a, each.name)];
      distance = std::max(distance, each.relative);
    }
    largest[runs.front().name] = weights_apart(comparison.measured[i]);
    for (Run& run : runs) {
      if (const double distance = largest[run.name]; distance > 0.0) {
        add_point(run, metric, i, std::log10(distance));
      }
    }
  }
  std::erase_if(runs, [](const Run& run) { return run.series.empty(); });
  return runs;
}

}  // namespace

std::string report_page(const Side& a, const Side& b, const Comparison& comparison) {
  const std::vector<UnitDistances> units = unit_distances(a, comparison);
  const std::size_t steps = comparison.measured.size();
  const std::array sides = {curves_of(a, steps), curves_of(b, steps)};
  std::string body = "<pre>" + html_text(verdict_text(a, b, comparison)) + "</pre>\n";
  for (const char* metric : {"loss", "norm of the gradients", "learning rate"}) {
    if (sides[0].series.contains(metric) || sides[1].series.contains(metric)) {
      body += chart_section(sides, metric);
    }
  }
  const std::vector<Run> distances = distance_curves(a, comparison, units);
  if (!distances.empty()) {
    body += chart_section(distances, distances.front().series.begin()->first);
  }
  return html_page("acclaunch compare",
                   "<style>" + std::string(kTableStyle) + "</style>\n" + body + unit_table(units));
}

}  // namespace acc::launcher::commands::compare
