// SPDX-License-Identifier: Apache-2.0
#include "run/metrics.hpp"

#include <nlohmann/json.hpp>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <system_error>
#include <utility>
#include <vector>

namespace train_gpt {
namespace {

using OrderedJson = nlohmann::ordered_json;

/// Returns the bytes of `key` in a file of /proc with lines such as "Key:   123 kB"; 0 if the key
/// is missing.
double kernel_bytes(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key + ":")) {
      double kibibytes = 0.0;
      std::istringstream(line.substr(key.size() + 1)) >> kibibytes;
      return kibibytes * 1024.0;
    }
  }
  return 0.0;
}

/// Returns the proportional set size (PSS) of this process. The kernel walks all pages to compute
/// it, so the value is refreshed only every two seconds.
double recent_pss_bytes() {
  using Clock = std::chrono::steady_clock;
  static double last = 0.0;
  static Clock::time_point due;
  if (Clock::now() >= due) {
    last = kernel_bytes("/proc/self/smaps_rollup", "Pss");
    due = Clock::now() + std::chrono::seconds(2);
  }
  return last;
}

/// What the metrics contain for each rank, by its key.
using RankRow = std::vector<std::pair<const char*, double>>;

/// Returns this rank's values. Doubles, because Runtime::all_gather transfers doubles; they are
/// exact up to 2^53 bytes.
RankRow rank_row(const acc::Model& model, const LanguageModel& gpt) {
  const acc::MemoryReport memory = model.memory();
  const acc::TrafficReport traffic = model.traffic();
  const auto real = [](std::int64_t value) { return static_cast<double>(value); };
  return {{"parameter_bytes", real(memory.parameter_bytes)},
          {"gradient_bytes", real(memory.gradient_bytes)},
          {"optimizer_bytes", real(memory.optimizer_bytes)},
          {"gathered_bytes", real(memory.gathered_bytes)},
          {"gradient_buffer_bytes", real(memory.gradient_buffer_bytes)},
          {"gathered_elements", real(traffic.gathered_elements)},
          {"gather_calls", real(traffic.gather_calls)},
          {"gathered_elements_moved", real(traffic.gathered_elements_moved)},
          {"reduced_elements", real(traffic.reduced_elements)},
          {"reduce_calls", real(traffic.reduce_calls)},
          {"all_reduced_elements", real(traffic.all_reduced_elements)},
          {"all_reduce_calls", real(traffic.all_reduce_calls)},
          {"peak_rss_bytes", kernel_bytes("/proc/self/status", "VmHWM")},
          {"pss_bytes", recent_pss_bytes()},
          {"activation_bytes", real(gpt.activation_bytes())},
          {"kept_bytes", real(gpt.kept_bytes())},
          {"device_peak_bytes", real(memory.device_peak_bytes)},
          {"snapshot_bytes", real(memory.snapshot_bytes)},
          {"nvme_bytes", real(memory.nvme_bytes)},
          {"nvme_buffer_bytes", real(memory.nvme_buffer_bytes)}};
}

/// Gathers the values of all ranks as one JSON object per rank.
OrderedJson rank_objects(acc::Runtime& runtime, const RankRow& own) {
  std::vector<double> values;
  for (const auto& [key, value] : own) {
    values.push_back(value);
  }
  values = runtime.all_gather(values);
  OrderedJson ranks = OrderedJson::array();
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i % own.size() == 0) {
      ranks.emplace_back();
    }
    ranks.back()[own[i % own.size()].first] = static_cast<std::int64_t>(values[i]);
  }
  return ranks;
}

}  // namespace

MetricsFile::MetricsFile(acc::Runtime& runtime, const std::string& path, bool resumed)
    : runtime_(runtime), path_(path), enabled_(!path.empty()) {
  if (!enabled_ || runtime.rank() != 0) {
    return;
  }
  file_.open(path, resumed ? std::ios::app : std::ios::trunc);
  if (!file_) {
    throw acc::Error(acc::Errc::config, failure());
  }
}

void MetricsFile::write(const StepResult& result, const acc::Model& model,
                        const LanguageModel& gpt) {
  if (!enabled_) {
    return;
  }
  OrderedJson ranks = rank_objects(runtime_, rank_row(model, gpt));
  if (runtime_.rank() != 0) {
    return;
  }
  OrderedJson line;
  line["step"] = result.step;
  line["loss"] = result.loss;
  line["grad_norm"] = result.grad_norm;
  line["lr"] = result.lr;
  line["loss_scale"] = result.loss_scale;
  line["skipped"] = result.skipped;
  line["tokens_per_s"] = result.tokens_per_second;
  line["flops_per_s"] = result.flops_per_second;
  line["step_s"] = result.seconds;
  line["time"] =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  line["strategy"] = acc::settings::to_string(runtime_.settings().sharding.strategy);
  line["hpz_partition_size"] = runtime_.settings().sharding.hpz_partition_size;
  line["compute_dtype"] = to_string(model.compute_dtype());
  line["ranks"] = std::move(ranks);
  if (!file_.is_open()) {
    return;
  }
  std::error_code unknown;
  const std::uintmax_t end = std::filesystem::file_size(path_, unknown);
  file_ << line.dump() << std::endl;  // flushed, so that readers of the file see complete lines
  if (!file_) {
    std::fprintf(stderr, "%s; no more metrics are written\n", failure().c_str());
    file_.close();
    if (!unknown) {  // removes the part of the line that the disk had room for
      std::filesystem::resize_file(path_, end, unknown);
    }
  }
}

std::string MetricsFile::failure() const {
  return "cannot write the metrics file " + path_ + ": " + std::strerror(errno);
}

}  // namespace train_gpt
