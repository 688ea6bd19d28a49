// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/settings/sharding_settings.hpp"

#include <optional>
#include <string>
#include <vector>

namespace acc::settings {

/// Type in which gradients are communicated (DeepSpeed's communication_data_type).
enum class ReduceDtype { fp32, fp16, bf16 };

ACC_API std::string_view to_string(ReduceDtype value) noexcept;

/// Fields that both plugins have: arithmetic and optimizer steps. A field that is not set keeps the
/// launcher's value.
struct TrainingFields {
  std::optional<MixedPrecision> mixed_precision;
  std::optional<ReduceDtype> reduce_dtype;
  std::optional<bool> quantized_weights;
  std::optional<bool> quantized_gradients;
  std::optional<NanPolicy> nan_policy;
  std::optional<bool> stochastic_rounding;
  std::optional<bool> deterministic;
  std::optional<bool> save_async;
  std::optional<std::int64_t> memory_checkpoint_every;
  std::optional<std::int64_t> memory_checkpoint_rate;
  std::optional<int> gradient_accumulation_steps;
  std::optional<double> gradient_clipping;

  bool operator==(const TrainingFields&) const = default;
};

/// A field of a plugin that the program set.
struct ProgramValue {
  std::string field;  ///< name in the plugin: `sharding_strategy`
  std::string key;    ///< name of the setting: `fsdp_sharding_strategy`
  std::string text;   ///< value, spelled as in a configuration file

  bool operator==(const ProgramValue&) const = default;
};

/// The settings that a program chose by filling in a plugin. If `plugin` is empty, it chose none.
struct ProgramSettings {
  std::string plugin;  ///< name of the plugin's class, for messages
  std::string origin;  ///< mode of the plugin: `fsdp` or `deepspeed`
  std::vector<ProgramValue> values;
};

}  // namespace acc::settings
