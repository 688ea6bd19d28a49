// SPDX-License-Identifier: Apache-2.0
#include "doctor/report.hpp"

#include "acc/base/json.hpp"
#include "doctor/facts_json.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace acc::doctor {
namespace {

using Row = std::vector<std::string>;

/// Formats rows as columns that are as wide as their widest cell. The first row is the heading.
std::string aligned(const std::vector<Row>& rows) {
  std::vector<std::size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += fmt::format("  {:<{}}", row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string gib_text(std::int64_t nbytes) {
  return fmt::format("{:.1f}", static_cast<double>(nbytes) / (1024.0 * 1024.0 * 1024.0));
}

std::string limit(std::int64_t value) {
  return value == kUnlimited ? "unlimited" : std::to_string(value);
}

std::string or_dash(const std::string& text) {
  return text.empty() ? "-" : text;
}

std::string machines_table(const Examination& examination) {
  std::vector<Row> rows = {{"machine", "host", "address", "acclaunch", "kernel", "CPUs", "GPUs",
                            "driver", "NCCL", "memory GiB", "shm GiB", "nofile", "memlock",
                            "clock ms"}};
  const auto offsets = clock_offsets_ms(examination);
  for (std::size_t i = 0; i < examination.machines.size(); ++i) {
    const auto& each = examination.machines[i];
    if (!each) {
      rows.push_back({std::to_string(i), "did not answer"});
      continue;
    }
    rows.push_back({std::to_string(i), each->host, or_dash(each->address), each->acclaunch_version,
                    each->kernel, std::to_string(each->cpus), std::to_string(each->gpus.size()),
                    or_dash(each->driver_version), or_dash(each->nccl_version),
                    gib_text(each->memory_available), gib_text(each->shm_free), limit(each->nofile),
                    limit(each->memlock), offsets[i] ? fmt::format("{:+.1f}", *offsets[i]) : "-"});
  }
  return aligned(rows);
}

std::string pair_cell(const Examination& examination, int a, int b) {
  const auto latency = examination.latency_us(a, b);
  const auto bandwidth = examination.bandwidth_gbps(a, b);
  return latency && bandwidth ? fmt::format("{:.0f} / {:.3g}", *latency, *bandwidth) : "failed";
}

std::string pairs_table(const Examination& examination) {
  const auto count = static_cast<int>(examination.machines.size());
  Row heading = {""};
  for (int b = 1; b < count; ++b) {
    heading.push_back(name_of(examination, b));
  }
  std::vector<Row> rows = {heading};
  for (int a = 0; a + 1 < count; ++a) {
    Row row = {name_of(examination, a)};
    for (int b = 1; b < count; ++b) {
      row.push_back(b <= a ? "" : pair_cell(examination, a, b));
    }
    rows.push_back(std::move(row));
  }
  return aligned(rows);
}

std::string findings_text(const std::vector<Finding>& found) {
  std::string text;
  for (const Finding& each : found) {
    text += fmt::format("{}: {} [{}]\n    -> {}\n", to_string(each.severity), each.what, each.kind,
                        each.what_to_do);
  }
  return text.empty() ? "no problems found\n" : text;
}

}  // namespace

std::string table(const Examination& examination, const std::vector<Finding>& found) {
  std::string text = "Machines\n" + machines_table(examination) + "\n";
  if (examination.machines.size() > 1) {
    text += "Pairs: latency us / bandwidth Gbit/s each way, of the runtime's collectives\n" +
            pairs_table(examination) + "\n";
  }
  return text + "Findings\n" + findings_text(found);
}

std::string json(const Examination& examination, const std::vector<Finding>& found,
                 const std::string& time) {
  using Json = nlohmann::ordered_json;
  Json machines = Json::array();
  Json clocks = Json::array();
  for (const auto& each : examination.machines) {
    machines.push_back(each ? to_json(*each) : Json(nullptr));
    // The token only serves the probes of this run.
    if (each) {
      machines.back().erase("token");
    }
  }
  for (const auto& each : clock_offsets_ms(examination)) {
    clocks.push_back(each ? Json(*each) : Json(nullptr));
  }
  Json pairs = Json::array();
  for (const PairFacts& each : examination.pairs) {
    pairs.push_back(to_json(each));
  }
  Json all = Json::array();
  for (const Finding& each : found) {
    all.push_back({{"severity", std::string(to_string(each.severity))},
                   {"kind", each.kind},
                   {"machines", each.machines},
                   {"what", each.what},
                   {"what_to_do", each.what_to_do}});
  }
  const Json whole = {{"format", 1},
                      {"time", time},
                      {"main_process", examination.main_process},
                      {"machines", std::move(machines)},
                      {"clock_offsets_ms", std::move(clocks)},
                      {"pairs", std::move(pairs)},
                      {"findings", std::move(all)},
                      {"exit_status", exit_status(found)}};
  return lossy_text_of_json(whole, 2) + "\n";
}

int exit_status(const std::vector<Finding>& found) noexcept {
  return std::ranges::any_of(found,
                             [](const Finding& each) { return each.severity == Severity::error; })
             ? 1
             : 0;
}

}  // namespace acc::doctor
