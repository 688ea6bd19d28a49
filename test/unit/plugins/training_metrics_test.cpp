// SPDX-License-Identifier: Apache-2.0
#include "acc/base/training_metrics.hpp"

#include "acc/base/flight_record.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>

using acc::TrainingMetrics;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

}  // namespace

TEST_CASE("names of metrics: aliases, memory, other values, and what is left out") {
  TrainingMetrics metrics;
  CHECK(set_metric(metrics, "step", 7.9));
  CHECK(set_metric(metrics, "lr", 0.5));
  CHECK(set_metric(metrics, "grad_norm", kNan));
  CHECK(set_metric(metrics, "memory.activations", 4096));
  CHECK(set_metric(metrics, "memory_bytes", 1));
  CHECK(set_metric(metrics, "accuracy", -1.0));
  CHECK(metrics.step == 7);
  CHECK(metrics.learning_rate == 0.5);
  CHECK(std::isnan(*metrics.gradient_norm));
  CHECK(metrics.memory == std::map<std::string, std::int64_t>{{"activations", 4096}, {"total", 1}});
  CHECK(metrics.values == std::map<std::string, double>{{"accuracy", -1.0}});
  const TrainingMetrics before = {.step = metrics.step};
  for (const auto& [name, value] : std::vector<std::pair<std::string, double>>{
           {"step", -1.0},
           {"step", kNan},
           {"step", 1e300},
           {"memory.x", -1.0},
           {"memory.", 1.0},
           {"memory.y", kNan},
           {"", 1.0},
           {"a b", 1.0},
           {"\x1b", 1.0},
           {std::string(TrainingMetrics::kMaxNameBytes + 1, 'n'), 1.0}}) {
    CAPTURE(name);
    CHECK_FALSE(set_metric(metrics, name, value));
  }
  CHECK(metrics.step == before.step);
  CHECK(metrics.memory.size() == 2);
  for (std::size_t i = 1; i < TrainingMetrics::kMaxEntries; ++i) {
    CHECK(set_metric(metrics, "v" + std::to_string(i), 1.0));
  }
  CHECK_FALSE(set_metric(metrics, "one_more", 1.0));
  CHECK(set_metric(metrics, "v1", 2.0));  // a known name still has a place
}

TEST_CASE("metrics in a flight record are read as they were written, or not at all") {
  namespace flight = acc::flight;
  TrainingMetrics metrics;
  set_metric(metrics, "step", 7);
  set_metric(metrics, "loss", std::numeric_limits<double>::infinity());
  set_metric(metrics, "wait_s", 0.25);
  for (std::size_t i = 0; i < TrainingMetrics::kMaxEntries; ++i) {
    set_metric(metrics, "memory.m" + std::to_string(i), static_cast<double>(i));
    set_metric(metrics,
               std::string(TrainingMetrics::kMaxNameBytes - 2, 'v') + std::to_string(10 + i),
               static_cast<double>(i));
  }
  CHECK(metrics.values.size() == TrainingMetrics::kMaxEntries);
  flight::file::FileMetrics file{};
  CHECK_FALSE(flight::from_file(file));  // nothing is reported
  const flight::Metrics written{.reported_us = 5, .values = metrics};
  to_file(written, file);
  file.started = file.finished = 1;
  CHECK(flight::from_file(file) == written);
  file.started = 2;  // a write is in progress
  CHECK_FALSE(flight::from_file(file));
  // Whatever a worker writes there: no crash, and only valid names and counts.
  for (const int byte : {0x01, 0x41, 0x7f, 0xff}) {
    std::memset(&file, byte, sizeof file);
    file.num_memory = file.num_values = TrainingMetrics::kMaxEntries;
    const auto read = flight::from_file(file);
    CHECK(read.has_value() == (file.reported_us > 0));
    for (const auto& [name, value] : read ? read->values.values : std::map<std::string, double>()) {
      CHECK(acc::is_metric_name(name));
    }
  }
  file.num_values = 17;
  CHECK_FALSE(flight::from_file(file));
}

TEST_CASE("merging keeps what only one side has") {
  TrainingMetrics to{.step = 1, .loss = 2.0, .memory = {{"a", 1}}};
  merge(to, {.loss = 3.0, .wait_s = 0.5, .memory = {{"a", 2}, {"b", 3}}});
  CHECK(to ==
        TrainingMetrics{.step = 1, .loss = 3.0, .wait_s = 0.5, .memory = {{"a", 2}, {"b", 3}}});
}
