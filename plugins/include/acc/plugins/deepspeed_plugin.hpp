#pragma once

#include "acc/plugins/settings.hpp"
#include "acc/plugins/sharding_settings.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace acc::plugins {

/// The DeepSpeed words that a sharding engine needs, with the field names of Accelerate 1.15's
/// plugin and of the `zero_optimization` block.
struct DeepSpeedPlugin {
  int zero_stage = 2;
  OffloadDevice offload_optimizer_device = OffloadDevice::none;
  OffloadDevice offload_param_device = OffloadDevice::none;
  std::string offload_optimizer_nvme_path;
  std::string offload_param_nvme_path;
  bool zero3_init_flag = false;
  bool zero3_save_16bit_model = false;
  int zero_hpz_partition_size = 1;
  std::int64_t reduce_bucket_size = 500'000'000;
  std::int64_t allgather_bucket_size = 500'000'000;
  std::int64_t stage3_prefetch_bucket_size = 50'000'000;
  std::int64_t stage3_param_persistence_threshold = 100'000;
  std::int64_t stage3_max_live_parameters = 1'000'000'000;
  std::int64_t stage3_max_reuse_distance = 1'000'000'000;
  std::int64_t sub_group_size = 1'000'000'000;
  std::optional<bool> overlap_comm;  ///< absent: with stage 3 only
  bool contiguous_gradients = true;
  bool round_robin_gradients = false;

  /// Throws Error(config) for values that exclude each other.
  static DeepSpeedPlugin from_settings(const Settings& settings);

  /// Throws Error(config) when the secondary group of hpZ does not fit the world.
  [[nodiscard]] ShardingSettings to_sharding_settings(int world_size) const;
};

}  // namespace acc::plugins
