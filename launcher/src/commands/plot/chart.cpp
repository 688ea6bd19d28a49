// SPDX-License-Identifier: Apache-2.0
#include "commands/plot/chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>

namespace acc::launcher::commands {
namespace {

constexpr double kWidth = 720.0;
constexpr double kHeight = 300.0;
constexpr double kLeft = 76.0;
constexpr double kRight = 12.0;
constexpr double kTop = 10.0;
constexpr double kBottom = 42.0;
/// Points of a line in the page at most, two for each column of the chart that is drawn.
constexpr std::size_t kMostPoints = 1200;

/// Colours that remain distinct with colour-blindness, on white and on black (Okabe and Ito, 2008).
constexpr std::array<std::string_view, 7> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                      "#e69f00", "#56b4e9", "#999999"};

constexpr std::string_view kStyle = R"(
:root { color-scheme: light dark; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 1.5rem auto; max-width: 60rem; padding: 0 1rem; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: currentColor; font-size: 12px; }
.grid { stroke: currentColor; stroke-opacity: 0.15; }
.axis { stroke: currentColor; stroke-opacity: 0.6; fill: none; }
.line { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
h2 { font-size: 1.05rem; margin: 1.6rem 0 0.3rem; }
ul { list-style: none; margin: 0.2rem 0; padding: 0; }
li span { display: inline-block; width: 1.6rem; height: 0.25rem; margin-right: 0.5rem; vertical-align: middle; }
)";

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      default: result += c;
    }
  }
  return result;
}

struct Extent {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  /// Makes room around a single value, so that it can be drawn.
  void widen() {
    if (!(high > low)) {
      const double room = low == 0.0 ? 1.0 : std::abs(low) * 0.1;
      low -= room;
      high += room;
    }
  }
};

/// One metric of one run.
struct Line {
  const Run* run;
  const Series* series;
  std::string_view colour;
};

struct Chart {
  std::string metric;
  std::vector<Line> lines;
  Extent x;
  Extent y;

  [[nodiscard]] double column(double step) const {
    return kLeft + (step - x.low) / (x.high - x.low) * (kWidth - kLeft - kRight);
  }
  [[nodiscard]] double row(double value) const {
    return kTop + (y.high - value) / (y.high - y.low) * (kHeight - kTop - kBottom);
  }
};

Chart make_chart(std::span<const Run> runs, const std::string& metric) {
  Chart chart{metric, {}, {}, {}};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto found = runs[i].series.find(metric);
    if (found == runs[i].series.end()) {
      continue;
    }
    chart.lines.push_back({&runs[i], &found->second, kColours[i % kColours.size()]});
    for (const Series::Point& point : found->second.points) {
      chart.x.add(point.step);
      if (std::isfinite(point.value)) {
        chart.y.add(point.value);
      }
    }
  }
  if (!std::isfinite(chart.y.low)) {  // no value is finite
    chart.y.add(0.0);
  }
  chart.x.widen();
  chart.y.widen();
  return chart;
}

/// Adds the path of the points [first, last), all finite. Of many points it keeps the smallest and
/// the largest of each group of neighbours, so that no peak is lost.
void add_path(std::string& path, const Chart& chart, std::span<const Series::Point> points,
              std::size_t group) {
  char command = 'M';
  const auto add = [&](const Series::Point& point) {
    path +=
        fmt::format("{}{:.1f} {:.1f}", command, chart.column(point.step), chart.row(point.value));
    command = 'L';
  };
  if (points.size() == 1) {  // a short stroke; a path of one point is not drawn
    add(points.front());
    path += "h0.1";
    return;
  }
  for (std::size_t i = 0; i < points.size(); i += group) {
    const auto part = points.subspan(i, std::min(group, points.size() - i));
    auto [low, high] = std::ranges::minmax_element(part, {}, &Series::Point::value);
    if (high < low) {
      std::swap(low, high);
    }
    add(*low);
    if (low != high) {
      add(*high);
    }
  }
}

std::string path_of(const Chart& chart, const Series& series) {
  const std::size_t group = 1 + 2 * series.points.size() / kMostPoints;
  const bool all = series.points.size() <= kMostPoints;
  std::string path;
  const std::span<const Series::Point> points(series.points);
  const auto is_finite = [](const Series::Point& point) { return std::isfinite(point.value); };
  for (auto at = points.begin(); at != points.end();) {
    const auto first = std::find_if(at, points.end(), is_finite);
    const auto last = std::find_if_not(first, points.end(), is_finite);
    if (first != last) {
      add_path(path, chart, {first, last}, all ? 1 : group);
    }
    at = last;
  }
  return path;
}

/// Returns a value in the unit that people read it in.
std::string in_words(std::string_view metric, double value) {
  if (metric.ends_with("_bytes")) {
    return std::abs(value) < 1024.0 * 1024.0 * 1024.0
               ? fmt::format("{:.4g} MiB", value / (1024.0 * 1024.0))
               : fmt::format("{:.4g} GiB", value / (1024.0 * 1024.0 * 1024.0));
  }
  return fmt::format("{:.5g}", value);
}

std::string axes(const Chart& chart) {
  std::string svg;
  for (const double value : ticks(chart.y.low, chart.y.high)) {
    const double y = chart.row(value);
    svg += fmt::format(
        "<line class=\"grid\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>"
        "<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n",
        kLeft, kWidth - kRight, y, y, kLeft - 6.0, y + 4.0, in_words(chart.metric, value));
  }
  for (const double step : ticks(chart.x.low, chart.x.high)) {
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{:.6g}</text>\n",
                       chart.column(step), kHeight - kBottom + 18.0, step);
  }
  return svg + fmt::format(
                   "<path class=\"axis\" d=\"M{} {}V{}H{}\"/>"
                   "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">step</text>\n",
                   kLeft, kTop, kHeight - kBottom, kWidth - kRight, (kLeft + kWidth - kRight) / 2.0,
                   kHeight - 6.0);
}

std::string legend_entry(const Chart& chart, const Line& line) {
  const Series::Point& last = line.series->points.back();
  const auto is_not_finite = [](const Series::Point& point) { return !std::isfinite(point.value); };
  const auto& points = line.series->points;
  std::string text = fmt::format(
      "{}: {} at step {:.6g}", line.run->name,
      std::isfinite(last.value) ? in_words(chart.metric, last.value) : "not finite", last.step);
  if (const auto count = std::ranges::count_if(points, is_not_finite); count > 0) {
    text += fmt::format("; not finite at {} step{}, first at {:.6g}", count, count == 1 ? "" : "s",
                        std::ranges::find_if(points, is_not_finite)->step);
  }
  return fmt::format("<li><span style=\"background:{}\"></span>{}</li>\n", line.colour,
                     escaped(text));
}

std::string section(const Chart& chart) {
  std::string html = fmt::format(
      "<section>\n<h2>{0}</h2>\n<svg viewBox=\"0 0 {1} {2}\" role=\"img\" "
      "aria-label=\"{0} over the steps\">\n{3}",
      escaped(chart.metric), kWidth, kHeight, axes(chart));
  std::string legend;
  for (const Line& line : chart.lines) {
    html += fmt::format("<path class=\"line\" stroke=\"{}\" d=\"{}\"><title>{}</title></path>\n",
                        line.colour, path_of(chart, *line.series), escaped(line.run->name));
    legend += legend_entry(chart, line);
  }
  return html + "</svg>\n<ul>\n" + legend + "</ul>\n</section>\n";
}

}  // namespace

std::vector<double> ticks(double low, double high) {
  const double rough = (high - low) / 7.0;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10.0 * power;
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (factor * power >= rough) {
      step = factor * power;
    }
  }
  std::vector<double> values;
  for (double i = std::ceil(low / step); i * step <= high; ++i) {
    values.push_back(i * step);
  }
  return values;
}

std::string metrics_page(std::span<const Run> runs, std::span<const std::string> metrics) {
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>Training metrics</title>\n<style>{}</style>\n</head>\n<body>\n"
      "<h1>Training metrics</h1>\n",
      kStyle);
  for (const std::string& metric : metrics) {
    html += section(make_chart(runs, metric));
  }
  for (const Run& run : runs) {
    for (const std::string& remark : run.remarks) {
      html += fmt::format("<p>{}: {}.</p>\n", escaped(run.name), escaped(remark));
    }
  }
  return html + "</body>\n</html>\n";
}

}  // namespace acc::launcher::commands
