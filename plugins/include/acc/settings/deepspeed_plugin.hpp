// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/settings/program_settings.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace acc::settings {

class Settings;

/// The DeepSpeed settings that a sharding engine needs, with the field names of Accelerate 1.15's
/// plugin and of the JSON blocks `zero_optimization` and `fp16`. Used like
/// FullyShardedDataParallelPlugin: a field that the program sets replaces the launcher's value.
struct ACC_API DeepSpeedPlugin : TrainingFields {
  std::optional<int> zero_stage;
  std::optional<OffloadDevice> offload_optimizer_device;
  std::optional<OffloadDevice> offload_param_device;
  std::optional<std::string> offload_optimizer_nvme_path;
  std::optional<std::string> offload_param_nvme_path;
  std::optional<bool> zero3_init_flag;  ///< default: true with stage 3
  std::optional<bool> zero3_save_16bit_model;
  std::optional<int> zero_hpz_partition_size;
  std::optional<std::int64_t> reduce_bucket_size;
  std::optional<std::int64_t> allgather_bucket_size;
  std::optional<std::int64_t> stage3_prefetch_bucket_size;
  std::optional<std::int64_t> stage3_param_persistence_threshold;
  std::optional<std::int64_t> stage3_model_persistence_threshold;
  std::optional<std::int64_t> stage3_max_live_parameters;
  std::optional<std::int64_t> stage3_max_reuse_distance;
  std::optional<std::int64_t> sub_group_size;
  std::optional<bool> overlap_comm;  ///< default: true with stage 3
  std::optional<bool> contiguous_gradients;
  std::optional<bool> round_robin_gradients;
  std::optional<double> loss_scale;  ///< fp16; 0: dynamic, controlled by the next five fields
  std::optional<int> initial_scale_power;
  std::optional<std::int64_t> loss_scale_window;
  std::optional<int> hysteresis;
  std::optional<bool> consecutive_hysteresis;
  std::optional<double> min_loss_scale;

  /// These three do the same as those of FullyShardedDataParallelPlugin.
  void set(std::string_view field, std::string_view value);
  [[nodiscard]] ProgramSettings program_settings() const;
  static DeepSpeedPlugin from_settings(const Settings& settings);

  bool operator==(const DeepSpeedPlugin&) const = default;
};

/// True if the settings ask for ZeRO stage 3.
bool is_zero3(const Settings& settings);

/// Returns a notice if hpZ is asked for below stage 3, where it has no effect; else an empty text.
std::string notice_of_unused_hpz(const Settings& settings);

}  // namespace acc::settings
