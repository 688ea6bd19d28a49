#pragma once

#include "acc/plugins/settings.hpp"
#include "acc/plugins/sharding_settings.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace acc::plugins {

/// The FSDP words, with the field names of Accelerate 1.15's plugin of the same name.
struct FullyShardedDataParallelPlugin {
  int fsdp_version = 1;
  Strategy sharding_strategy = Strategy::full_shard;  ///< FSDP 1
  bool reshard_after_forward = true;                  ///< FSDP 2
  int reshard_after_forward_size = 0;  ///< FSDP 2 given a group size instead; 0: none
  BackwardPrefetch backward_prefetch = BackwardPrefetch::none;
  bool cpu_offload = false;
  StateDictType state_dict_type = StateDictType::full;
  WrapPolicy auto_wrap_policy = WrapPolicy::unset;
  std::vector<std::string> transformer_cls_names_to_wrap;
  std::int64_t min_num_params = 100'000'000;
  bool use_orig_params = true;
  bool sync_module_states = true;
  bool forward_prefetch = false;
  bool cpu_ram_efficient_loading = true;
  bool activation_checkpointing = false;
  bool activation_checkpointing_offload = false;
  std::string ignored_modules;
  bool limit_all_gathers = true;
  int dp_replicate_size = 1;             ///< of the parallelism config; 1: not given
  int dp_shard_size = 1;                 ///< of the parallelism config; 1: not given
  std::int64_t model_parallel_size = 1;  ///< of it: tensor x context x sequence parallelism

  /// Throws Error(config) for values that exclude each other.
  static FullyShardedDataParallelPlugin from_settings(const Settings& settings);

  /// Throws Error(config) when the shard group does not fit the world.
  [[nodiscard]] ShardingSettings to_sharding_settings(int world_size) const;
};

/// Accelerate's questionnaire stores the strategy of FSDP 1 under fsdp_reshard_after_forward. Moves
/// it to fsdp_sharding_strategy, unless that is given too. Returns what was done, in words; nothing
/// with FSDP 2, or where there is nothing to do. Throws Error(config) for an unknown strategy.
std::string settle_questionnaire_strategy(Settings& settings);

}  // namespace acc::plugins
