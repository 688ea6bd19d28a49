// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/settings/program_settings.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace acc::settings {

class SettingKey;
class Settings;

/// The FSDP settings, with the field names of Accelerate 1.15's plugin of the same name. A program
/// may set some fields and pass the plugin to `Runtime::from_environment`: fields that are set
/// replace the launcher's values, the others keep them.
struct ACC_API FullyShardedDataParallelPlugin : TrainingFields {
  std::optional<int> fsdp_version;
  std::optional<Strategy> sharding_strategy;  ///< FSDP 1
  /// FSDP 2: true or false, or the number of ranks of the group to reshard to.
  std::optional<std::variant<bool, int>> reshard_after_forward;
  std::optional<BackwardPrefetch> backward_prefetch;
  std::optional<bool> cpu_offload;
  std::optional<StateDictType> state_dict_type;  ///< default: FSDP 1 full, FSDP 2 sharded
  std::optional<WrapPolicy> auto_wrap_policy;
  std::optional<std::vector<std::string>> transformer_cls_names_to_wrap;
  std::optional<std::int64_t> min_num_params;
  std::optional<bool> use_orig_params;
  std::optional<bool> sync_module_states;
  std::optional<bool> forward_prefetch;
  std::optional<bool> limit_all_gathers;
  std::optional<bool> cpu_ram_efficient_loading;
  std::optional<bool> activation_checkpointing;
  std::optional<bool> activation_checkpointing_offload;
  std::optional<std::string> ignored_modules;
  std::optional<int> dp_replicate_size;  ///< from `parallelism_config`
  std::optional<int> dp_shard_size;      ///< from `parallelism_config`

  /// Sets a field by name from text: `set("sharding_strategy", "FULL_SHARD")`. Throws Error(config)
  /// for an unknown field, or with the expected value.
  void set(std::string_view field, std::string_view value);

  /// Returns the fields that are set, for `settings_from_environment`.
  [[nodiscard]] ProgramSettings program_settings() const;

  /// Returns a plugin with a value in every field whose setting has a value or a default. Throws
  /// Error(config) for values that exclude each other.
  static FullyShardedDataParallelPlugin from_settings(const Settings& settings);

  bool operator==(const FullyShardedDataParallelPlugin&) const = default;
};

/// True if the settings are for FSDP 1.
bool is_fsdp1(const Settings& settings);

/// Returns the setting that says what a version of FSDP, 1 or 2, shards.
SettingKey fsdp_strategy_key(int version);

/// Moves a strategy name from fsdp_reshard_after_forward to fsdp_sharding_strategy, unless that is
/// given too. `accelerate config` stores the strategy of FSDP 1 under the first key. Returns a
/// notice about what was done, or an empty text with FSDP 2 and if there was nothing to do. Throws
/// Error(config) for an unknown strategy.
std::string settle_questionnaire_strategy(Settings& settings);

}  // namespace acc::settings
