// SPDX-License-Identifier: Apache-2.0
// The verdict as text for people, and as JSON (docs/compare.schema.json).
#include "acc/base/text.hpp"

#include "commands/compare/compare.hpp"
#include "commands/text_table.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <string>

namespace acc::launcher::commands::compare {
namespace {

using Rows = std::vector<std::vector<std::string>>;

/// Entries of a list that are printed: the verdict is one screen.
constexpr std::size_t kMostCauses = 4;
constexpr std::size_t kMostSettings = 10;

std::string indented(const Rows& rows) {
  std::string text;
  const std::string table = text_table(rows, "<");
  for (const std::string_view line : split(table, '\n')) {
    text += "  " + std::string(line) + "\n";
  }
  return text;
}

/// Breaks a sentence into lines after a mark such as `1. `.
std::string wrapped(const std::string& mark, const std::string& sentence) {
  constexpr std::size_t kWidth = 96;
  std::string text;
  std::string line = mark;
  for (const std::string_view word : split(sentence, ' ')) {
    if (line.size() + word.size() > kWidth) {
      text += line + "\n";
      line = std::string(mark.size(), ' ');
    }
    line += (line.size() == mark.size() ? "" : " ") + std::string(word);
  }
  return text + line + "\n";
}

std::string bound_text(const Comparison& comparison) {
  return fmt::format("{}, {} modules one after the other", comparison.precision, comparison.depth);
}

std::string equal_text(const Comparison& comparison) {
  std::string text = fmt::format("A and B are equal to rounding up to step {} ({})\n",
                                 comparison.steps - 1, bound_text(comparison));
  Rows rows = {{"", "largest distance", "bound", "at"}};
  for (const Nearest& each : comparison.nearest) {
    rows.push_back({each.phase, fmt::format("{:.2g}", each.distance),
                    fmt::format("{:.2g}", each.bound),
                    fmt::format("step {}, {}", each.step, printable(each.name))});
  }
  return text + (rows.size() > 1 ? indented(rows) : "");
}

/// The phases before the first difference, all of whose values agreed.
std::string agreed_before(const Comparison& comparison) {
  std::string text;
  for (const Nearest& each : comparison.nearest) {
    if (each.phase != comparison.first->phase) {
      text += (text.empty() ? "" : ", ") + each.phase;
    }
  }
  return text;
}

std::string different_text(const Side& a, const Comparison& comparison) {
  const Difference& first = *comparison.first;
  std::string text = fmt::format("A and B part at step {}: {}\n", first.step, first.phase);
  Rows rows;
  if (!first.unit.empty()) {
    const ModelModule* module = a.module(first.unit);
    rows.push_back(
        {"unit", printable(first.unit + (module == nullptr ? "" : " (" + module->type + ")"))});
  }
  const std::string in_b = comparison.names.in_b(first.name);
  rows.push_back({"at", printable(first.name.empty() ? "the model's output" : first.name) +
                            (in_b == first.name ? "" : " (in B: " + printable(in_b) + ")")});
  rows.push_back({"A", printable(first.a)});
  rows.push_back({"B", printable(first.b)});
  if (first.bound > 0.0) {
    rows.push_back({"distance", fmt::format("{:.2g}, bound {:.2g} ({})", first.distance,
                                            first.bound, bound_text(comparison))});
  }
  if (const std::string agreed = agreed_before(comparison); !agreed.empty()) {
    rows.push_back({"before", agreed + (comparison.nearest.size() == 1 ? " agrees" : " agree")});
  }
  text += indented(rows);
  if (comparison.causes.empty()) {
    return text + "\nNo known cause explains it.\n";
  }
  text += comparison.causes.size() == 1 ? "\nLikely cause\n" : "\nLikely causes\n";
  for (std::size_t i = 0; i < std::min(kMostCauses, comparison.causes.size()); ++i) {
    const Cause& cause = comparison.causes[i];
    text += wrapped(fmt::format("  {}. ", i + 1),
                    printable(cause.text) + ". Look at: " + printable(cause.setting) + ".");
  }
  return text;
}

nlohmann::ordered_json number_json(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}

nlohmann::ordered_json optional_json(const std::optional<double>& value) {
  return value ? number_json(*value) : nlohmann::ordered_json(nullptr);
}

}  // namespace

std::string verdict_text(const Side& a, const Side& b, const Comparison& comparison) {
  std::string text;
  for (const Side* side : {&a, &b}) {
    text += fmt::format("{}: {}\n", side->label, printable(side->title));
  }
  text += comparison.first ? different_text(a, comparison) : equal_text(comparison);
  if (!comparison.settings.empty()) {
    Rows rows = {{"", "A", "B"}};
    for (std::size_t i = 0; i < std::min(kMostSettings, comparison.settings.size()); ++i) {
      const Setting& each = comparison.settings[i];
      rows.push_back({printable(each.name), printable(each.a), printable(each.b)});
    }
    text += "\nRecorded differences of the set-up\n" + indented(rows);
  }
  for (const std::string& remark : comparison.remarks) {
    text += wrapped("Note: ", printable(remark) + ".");
  }
  return text;
}

double weights_apart(const MeasuredStep& step) {
  double apart = 0.0;
  double all = 0.0;
  for (const Measured& each : step.of(Phase::updated)) {
    apart += each.apart * each.apart;
    all += each.norm_a * each.norm_a;
  }
  return all > 0.0 ? std::sqrt(apart / all) : 0.0;
}

nlohmann::ordered_json verdict_json(const Side& a, const Side& b, const Comparison& comparison) {
  using Object = nlohmann::ordered_json;
  Object result = {{"verdict", comparison.first ? "different" : "equal"}};
  for (const Side* side : {&a, &b}) {
    result[side == &a ? "a" : "b"] = {{"title", side->title},
                                      {"ranks", side->world_size},
                                      {"engine", side->engine},
                                      {"steps", side->steps.size()}};
  }
  result["steps"] = comparison.steps;
  result["precision"] = comparison.precision;
  result["modules"] = comparison.depth;
  result["first"] = nullptr;
  if (const auto& first = comparison.first) {
    result["first"] = {{"step", first->step},
                       {"phase", first->phase},
                       {"unit", first->unit},
                       {"name", first->name},
                       {"a", first->a},
                       {"b", first->b},
                       {"distance", number_json(first->distance)},
                       {"bound", number_json(first->bound)}};
  }
  for (const char* key : {"causes", "settings", "remarks", "nearest", "curves"}) {
    result[key] = Object::array();
  }
  for (const Cause& each : comparison.causes) {
    result["causes"].push_back({{"id", each.id}, {"text", each.text}, {"setting", each.setting}});
  }
  for (const Setting& each : comparison.settings) {
    result["settings"].push_back({{"name", each.name}, {"a", each.a}, {"b", each.b}});
  }
  result["remarks"] = comparison.remarks;
  for (const Nearest& each : comparison.nearest) {
    result["nearest"].push_back({{"phase", each.phase},
                                 {"name", each.name},
                                 {"step", each.step},
                                 {"distance", number_json(each.distance)},
                                 {"bound", number_json(each.bound)}});
  }
  for (std::size_t i = 0; i < comparison.measured.size(); ++i) {
    const Step& of_a = a.steps[i];
    const Step& of_b = b.steps[i];
    result["curves"].push_back(
        {{"step", i},
         {"loss", {optional_json(of_a.loss), optional_json(of_b.loss)}},
         {"gradient_norm", {number_json(of_a.gradient_norm()), number_json(of_b.gradient_norm())}},
         {"distance_of_weights", number_json(weights_apart(comparison.measured[i]))}});
  }
  return result;
}

}  // namespace acc::launcher::commands::compare
