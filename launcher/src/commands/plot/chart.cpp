// SPDX-License-Identifier: Apache-2.0
#include "commands/plot/chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <string_view>
#include <utility>

namespace acc::launcher::commands {
namespace {

/// The plot in its own coordinates. It is stretched to the width of the page; texts are not part of
/// it, so that their size is that of the page's text, also on a phone.
constexpr double kWidth = 1000.0;
constexpr double kHeight = 1000.0;
/// Points of a line in the page at most, two for each column of the chart that is drawn.
constexpr std::size_t kMostPoints = 1200;
/// A line that is nearer than this to another one at a quarter of its points hides it.
constexpr double kHides = kHeight / 150.0;
/// Length of a dash of lines that hide each other, in pixels.
constexpr int kDash = 9;

/// Colours that remain distinct with colour-blindness, on white and on black (Okabe and Ito, 2008).
constexpr std::array<std::string_view, 7> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                      "#e69f00", "#56b4e9", "#999999"};

constexpr std::string_view kStyle = R"(
:root { color-scheme: light dark; }
body { font: 16px/1.45 system-ui, sans-serif; margin: 1.5rem auto; max-width: 60rem; padding: 0 1rem; }
.plot { position: relative; height: 17rem; margin: 0.5rem 0.8rem 3.2rem 5rem; touch-action: pan-y; }
.plot svg { position: absolute; inset: 0; width: 100%; height: 100%; overflow: visible; }
.plot svg * { vector-effect: non-scaling-stroke; }
.plot span { position: absolute; font-size: 0.8rem; line-height: 1; white-space: nowrap; }
.y { right: calc(100% + 0.4rem); transform: translateY(50%); }
.x { top: calc(100% + 0.5rem); transform: translateX(-50%); }
.plot .name { top: calc(100% + 1.7rem); left: 50%; transform: translateX(-50%); }
.grid { stroke: currentColor; stroke-opacity: 0.15; }
.axis { stroke: currentColor; stroke-opacity: 0.6; fill: none; }
.line { fill: none; stroke-width: 1.8px; stroke-linejoin: round; stroke-linecap: round; }
.at { stroke: currentColor; stroke-dasharray: 2 3; visibility: hidden; }
h2 { font-size: 1.05rem; margin: 1.6rem 0 0.3rem; }
ul { list-style: none; margin: 0.2rem 0; padding: 0; font-variant-numeric: tabular-nums; }
li svg { width: 2.3rem; height: 0.5rem; margin-right: 0.5rem; }
@media (max-width: 30rem) { .x:nth-of-type(even) { display: none; } .plot { height: 14rem; } }
)";

/// Shows the values at the step under the pointer, or chosen with the arrow keys, in the legend.
constexpr std::string_view kScript = R"(
for (const plot of document.querySelectorAll(".plot")) {
  const lines = [...plot.querySelectorAll(".line")].map((path) => {
    const numbers = path.dataset.points.split(" ").map(Number);
    return numbers.filter((_, i) => i % 2 === 0).map((step, i) => [step, numbers[2 * i + 1]]);
  });
  const texts = [...plot.parentElement.querySelectorAll("li output")];
  const names = texts.map((each) => each.dataset.name);
  const last = texts.map((each) => each.textContent);
  const { low, high, unit, suffix } = plot.dataset;
  const steps = [...new Set(lines.flat().map((point) => point[0]))].sort((a, b) => a - b);
  const at = plot.querySelector(".at");
  let chosen = -1;
  const number = (value) => Math.abs(value) >= 1e5 ? Math.round(value) : +value.toPrecision(5);
  const nearest = (list, step) => list.reduce((a, b) => Math.abs(b[0] - step) < Math.abs(a[0] - step) ? b : a, list[0]);
  const show = (index) => {
    chosen = index;
    at.style.visibility = index < 0 ? "hidden" : "visible";
    if (index >= 0) {
      const x = (steps[index] - low) / (high - low) * 1000;
      at.setAttribute("x1", x);
      at.setAttribute("x2", x);
    }
    texts.forEach((text, i) => {
      const point = index < 0 || !lines[i].length ? null : nearest(lines[i], steps[index]);
      text.textContent = point ? `${names[i]}: ${number(point[1] / unit)}${suffix} at step ${point[0]}` : last[i];
    });
  };
  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    const step = +low + (event.clientX - box.left) / box.width * (high - low);
    show(steps.indexOf(nearest(steps.map((each) => [each]), step)[0]));
  });
  plot.addEventListener("pointerleave", () => show(-1));
  plot.addEventListener("blur", () => show(-1));
  plot.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by && steps.length) {
      event.preventDefault();
      show(Math.max(0, Math.min(steps.length - 1, chosen < 0 ? (by > 0 ? 0 : steps.length - 1) : chosen + by)));
    }
  });
}
)";

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

/// The unit in which people read the values of a metric.
struct Unit {
  double size = 1.0;
  std::string_view suffix;
};

Unit unit_of(std::string_view metric, double largest) {
  constexpr std::array kBinary = {Unit{1024.0 * 1024.0 * 1024.0, " GiB"},
                                  Unit{1024.0 * 1024.0, " MiB"}, Unit{1024.0, " KiB"},
                                  Unit{1.0, " B"}};
  constexpr std::array kDecimal = {Unit{1e9, " G"}, Unit{1e6, " M"}, Unit{1e4, ""}};
  if (metric.ends_with("_bytes")) {
    const auto found =
        std::ranges::find_if(kBinary, [&](const Unit& each) { return largest >= each.size; });
    return found == kBinary.end() ? kBinary.back() : *found;
  }
  const auto found =
      std::ranges::find_if(kDecimal, [&](const Unit& each) { return largest >= each.size; });
  return found == kDecimal.end() || found->suffix.empty() ? Unit{1.0, ""} : *found;
}

/// One metric of one run.
struct Line {
  const Run* run;
  const Series* series;
  std::string_view colour;
  /// Lines that hide each other are drawn in turns, each in dashes of its own: the number of this
  /// one among them, and how many they are.
  int turn = 0;
  int turns = 1;

  /// Returns the attributes of a stroke of this line.
  [[nodiscard]] std::string stroke() const {
    std::string text = fmt::format("stroke=\"{}\"", colour);
    if (turn > 0) {  // the first one is whole
      text += fmt::format(" stroke-dasharray=\"{} {}\" stroke-dashoffset=\"{}\"", kDash,
                          kDash * (turns - 1), -kDash * turn);
    }
    return text;
  }
};

struct Chart {
  std::string metric;
  std::vector<Line> lines;
  Extent x;
  Extent y;
  Unit unit;

  [[nodiscard]] double column(double step) const {
    return (step - x.low) / (x.high - x.low) * kWidth;
  }
  [[nodiscard]] double row(double value) const {
    return (y.high - value) / (y.high - y.low) * kHeight;
  }
};

/// True if two lines are drawn at the same place for a quarter of the points of the shorter one.
bool hides(const Chart& chart, const Series& a, const Series& b) {
  std::map<double, double> values;
  for (const Series::Point& point : a.points) {
    values[point.step] = point.value;
  }
  std::size_t near = 0;
  for (const Series::Point& point : b.points) {
    const auto found = values.find(point.step);
    near += found != values.end() &&
                    std::abs(chart.row(found->second) - chart.row(point.value)) < kHides
                ? 1
                : 0;
  }
  return near > 0 && 4 * near >= std::min(a.points.size(), b.points.size());
}

/// Gives turns to the lines that hide each other.
void take_turns(Chart& chart) {
  std::vector<std::size_t> first(chart.lines.size());  // the first line at the same place
  for (std::size_t i = 0; i < chart.lines.size(); ++i) {
    first[i] = i;
    for (std::size_t j = 0; j < i && first[i] == i; ++j) {
      if (first[j] == j && hides(chart, *chart.lines[j].series, *chart.lines[i].series)) {
        first[i] = j;
      }
    }
    chart.lines[i].turn = static_cast<int>(std::ranges::count(
        first.begin(), first.begin() + static_cast<std::ptrdiff_t>(i), first[i]));
  }
  for (std::size_t i = 0; i < chart.lines.size(); ++i) {
    chart.lines[i].turns = static_cast<int>(std::ranges::count(first, first[i]));
  }
}

Chart make_chart(std::span<const Run> runs, const std::string& metric) {
  Chart chart{metric, {}, {}, {}, {}};
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
  chart.unit = unit_of(metric, std::max(std::abs(chart.y.low), std::abs(chart.y.high)));
  take_turns(chart);
  return chart;
}

/// Returns the points that are drawn, in parts that are finite. Of many points it keeps the
/// smallest and the largest of each group of neighbours, so that no peak is lost.
std::vector<std::vector<Series::Point>> drawn_points(const Series& series) {
  const std::span<const Series::Point> points(series.points);
  const std::size_t group = points.size() <= kMostPoints ? 1 : 1 + 2 * points.size() / kMostPoints;
  const auto is_finite = [](const Series::Point& point) { return std::isfinite(point.value); };
  std::vector<std::vector<Series::Point>> parts;
  for (auto at = points.begin(); at != points.end();) {
    const auto first = std::find_if(at, points.end(), is_finite);
    const auto last = std::find_if_not(first, points.end(), is_finite);
    if (first != last) {
      const std::span<const Series::Point> part(first, last);
      std::vector<Series::Point>& kept = parts.emplace_back();
      for (std::size_t i = 0; i < part.size(); i += group) {
        const auto neighbours = part.subspan(i, std::min(group, part.size() - i));
        auto [low, high] = std::ranges::minmax_element(neighbours, {}, &Series::Point::value);
        if (high < low) {
          std::swap(low, high);
        }
        kept.push_back(*low);
        if (low != high) {
          kept.push_back(*high);
        }
      }
    }
    at = last;
  }
  return parts;
}

/// Returns a line with its points, which the script of the page reads: steps and values in turn.
std::string drawn(const Chart& chart, const Line& line) {
  std::string path;
  std::string points;
  for (const auto& part : drawn_points(*line.series)) {
    char command = 'M';
    for (const Series::Point& point : part) {
      path +=
          fmt::format("{}{:.1f} {:.1f}", command, chart.column(point.step), chart.row(point.value));
      points += fmt::format("{}{:.10g} {:.6g}", points.empty() ? "" : " ", point.step, point.value);
      command = 'L';
    }
    path += part.size() == 1 ? "h0.1" : "";  // a path of one point is not drawn
  }
  return fmt::format(
      "<path class=\"line\" {} data-points=\"{}\" d=\"{}\"><title>{}</title></path>\n",
      line.stroke(), points, path, html_text(line.run->name));
}

/// Returns a value in the unit of the chart.
std::string in_words(const Chart& chart, double value) {
  const double number = value / chart.unit.size;
  return (std::abs(number) >= 1e5 ? fmt::format("{:.0f}", number) : fmt::format("{:.5g}", number)) +
         std::string(chart.unit.suffix);
}

/// Returns the labels of ticks, with as many digits as they need to differ.
std::vector<std::string> labels_of(const std::vector<double>& values, std::string_view suffix) {
  double largest = 0.0;
  for (const double value : values) {
    largest = std::max(largest, std::abs(value));
  }
  const double step = values.size() > 1 ? values[1] - values[0] : largest;
  const int last_digit = step > 0.0 ? static_cast<int>(std::floor(std::log10(step) + 1e-9)) : 0;
  std::vector<std::string> labels;
  for (const double value : values) {
    std::string label;
    if (largest < 1e-3 && largest > 0.0) {
      const int first_digit = static_cast<int>(std::floor(std::log10(largest) + 1e-9));
      const double power = std::pow(10.0, first_digit);
      label = fmt::format("{:.{}f}e{}", value / power, std::max(0, first_digit - last_digit),
                          first_digit);
    } else {
      label = fmt::format("{:.{}f}", value, std::max(0, -last_digit));
    }
    labels.push_back(label + std::string(suffix));
  }
  return labels;
}

/// Returns the grid, and the labels of the axes in percents of the plot.
std::pair<std::string, std::string> axes(const Chart& chart) {
  std::string svg;
  std::string labels;
  const std::vector<double> rows =
      ticks(chart.y.low / chart.unit.size, chart.y.high / chart.unit.size);
  const std::vector<std::string> row_labels = labels_of(rows, chart.unit.suffix);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const double y = chart.row(rows[i] * chart.unit.size);
    svg += fmt::format("<line class=\"grid\" x1=\"0\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
                       kWidth, y, y);
    labels += fmt::format("<span class=\"y\" style=\"bottom:{:.2f}%\">{}</span>\n",
                          100.0 - 100.0 * y / kHeight, row_labels[i]);
  }
  const Unit steps = unit_of("", std::max(std::abs(chart.x.low), std::abs(chart.x.high)));
  const std::vector<double> columns = ticks(chart.x.low / steps.size, chart.x.high / steps.size);
  const std::vector<std::string> column_labels = labels_of(columns, steps.suffix);
  std::string of_steps;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    of_steps +=
        fmt::format("<span class=\"x\" style=\"left:{:.2f}%\">{}</span>\n",
                    100.0 * chart.column(columns[i] * steps.size) / kWidth, column_labels[i]);
  }
  svg += fmt::format("<path class=\"axis\" d=\"M0 0V{}H{}\"/>\n", kHeight, kWidth);
  return {svg, of_steps + labels + "<span class=\"name\">step</span>\n"};
}

std::string legend_entry(const Chart& chart, const Line& line) {
  const Series::Point& last = line.series->points.back();
  const auto is_not_finite = [](const Series::Point& point) { return !std::isfinite(point.value); };
  const auto& points = line.series->points;
  std::string text = fmt::format(
      "{}: {} at step {:.6g}", line.run->name,
      std::isfinite(last.value) ? in_words(chart, last.value) : "not finite", last.step);
  if (const auto count = std::ranges::count_if(points, is_not_finite); count > 0) {
    text += fmt::format("; not finite at {} step{}, first at {:.6g}", count, count == 1 ? "" : "s",
                        std::ranges::find_if(points, is_not_finite)->step);
  }
  return fmt::format(
      "<li><svg viewBox=\"0 0 36 6\" aria-hidden=\"true\"><path d=\"M0 3H36\" stroke-width=\"3\" "
      "{}/></svg>"
      "<output data-name=\"{}\">{}</output></li>\n",
      line.stroke(), html_text(line.run->name), html_text(text));
}

std::string section(const Chart& chart) {
  const auto [grid, labels] = axes(chart);
  std::string html = fmt::format(
      "<section>\n<h2>{0}</h2>\n<div class=\"plot\" tabindex=\"0\" data-low=\"{1:.10g}\" "
      "data-high=\"{2:.10g}\" "
      "data-unit=\"{3:.10g}\" data-suffix=\"{4}\" role=\"img\" aria-label=\"{0} over the steps; "
      "the arrow keys "
      "choose a step\">\n{5}<svg viewBox=\"0 0 {6} {7}\" preserveAspectRatio=\"none\">\n{8}",
      html_text(chart.metric), chart.x.low, chart.x.high, chart.unit.size, chart.unit.suffix,
      labels, kWidth, kHeight, grid);
  std::string legend;
  for (const Line& line : chart.lines) {
    html += drawn(chart, line);
    legend += legend_entry(chart, line);
  }
  html += fmt::format("<line class=\"at\" y1=\"0\" y2=\"{}\"/>\n", kHeight);
  return html + "</svg>\n</div>\n<ul>\n" + legend + "</ul>\n</section>\n";
}

}  // namespace

std::string html_text(std::string_view text) {
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
  // 6 * 5e-5 is more than 3e-4. Beyond 2^53 the next number may be the same.
  const double first = std::ceil(low / step - 1e-9);
  for (int i = 0; i < 9 && first + i <= high / step + 1e-9; ++i) {
    values.push_back((first + i) * step + 0.0);  // without the sign of -0
  }
  return values;
}

std::string chart_section(std::span<const Run> runs, const std::string& metric) {
  return section(make_chart(runs, metric));
}

std::string html_page(std::string_view title, std::string_view body) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>{0}</title>\n<style>{1}</style>\n</head>\n<body>\n"
      "<h1>{0}</h1>\n{2}<script>{3}</script>\n</body>\n</html>\n",
      html_text(title), kStyle, body, kScript);
}

std::string metrics_page(std::span<const Run> runs, std::span<const std::string> metrics) {
  std::string body;
  for (const std::string& metric : metrics) {
    body += chart_section(runs, metric);
  }
  for (const Run& run : runs) {
    for (const std::string& remark : run.remarks) {
      body += fmt::format("<p>{}: {}.</p>\n", html_text(run.name), html_text(remark));
    }
  }
  return html_page("Training metrics", body);
}

}  // namespace acc::launcher::commands
