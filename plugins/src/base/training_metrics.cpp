// SPDX-License-Identifier: Apache-2.0
#include "acc/base/training_metrics.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace acc {
namespace {

using Field = std::optional<double> TrainingMetrics::*;
constexpr std::array<std::pair<std::string_view, Field>, 11> kFieldNames = {{
    {"loss", &TrainingMetrics::loss},
    {"learning_rate", &TrainingMetrics::learning_rate},
    {"lr", &TrainingMetrics::learning_rate},
    {"gradient_norm", &TrainingMetrics::gradient_norm},
    {"grad_norm", &TrainingMetrics::gradient_norm},
    {"tokens_per_s", &TrainingMetrics::tokens_per_s},
    {"step_s", &TrainingMetrics::step_s},
    {"compute_s", &TrainingMetrics::compute_s},
    {"gather_s", &TrainingMetrics::gather_s},
    {"reduce_s", &TrainingMetrics::reduce_s},
    {"wait_s", &TrainingMetrics::wait_s},
}};

constexpr std::string_view kMemory = "memory.";
// 2^63: every double below it fits std::int64_t.
constexpr double kTooLarge = 9223372036854775808.0;

bool is_count(double value) {
  return value >= 0.0 && value < kTooLarge;
}

template <typename T>
bool set_entry(std::map<std::string, T>& entries, std::string_view name, T value) {
  const auto found = entries.find(std::string(name));
  if (found != entries.end()) {
    found->second = value;
    return true;
  }
  if (!is_metric_name(name) || entries.size() >= TrainingMetrics::kMaxEntries) {
    return false;
  }
  entries.emplace(name, value);
  return true;
}

}  // namespace

bool is_metric_name(std::string_view name) {
  return !name.empty() && name.size() <= TrainingMetrics::kMaxNameBytes &&
         std::ranges::all_of(name, [](char c) { return c > 0x20 && c < 0x7f; });
}

void merge(TrainingMetrics& to, const TrainingMetrics& from) {
  to.step = from.step ? from.step : to.step;
  for (const auto& [name, field] : kFieldNames) {
    if (from.*field) {
      to.*field = from.*field;
    }
  }
  for (const auto& [name, nbytes] : from.memory) {
    set_entry(to.memory, name, nbytes);
  }
  for (const auto& [name, value] : from.values) {
    set_entry(to.values, name, value);
  }
}

bool set_metric(TrainingMetrics& metrics, std::string_view name, double value) {
  const auto* const field =
      std::ranges::find(kFieldNames, name, [](const auto& each) { return each.first; });
  if (field != kFieldNames.end()) {
    metrics.*field->second = value;
    return true;
  }
  const bool is_memory = name.starts_with(kMemory) || name == "memory_bytes";
  if ((is_memory || name == "step") && !is_count(value)) {
    return false;
  }
  if (name == "step") {
    metrics.step = static_cast<std::int64_t>(value);
    return true;
  }
  if (is_memory) {
    const std::string_view category =
        name == "memory_bytes" ? std::string_view("total") : name.substr(kMemory.size());
    return set_entry(metrics.memory, category, static_cast<std::int64_t>(value));
  }
  return set_entry(metrics.values, name, value);
}

}  // namespace acc
