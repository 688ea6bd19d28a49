#pragma once

#include "acc/plugins/sharding_settings.hpp"

#include <optional>
#include <string>
#include <vector>

namespace acc::plugins {

/// In which type gradients travel (DeepSpeed's communication_data_type).
enum class ReduceDtype { fp32, fp16, bf16 };

ACC_API std::string_view to_string(ReduceDtype value) noexcept;

/// What both plugins say of the arithmetic. As in all of a plugin, a field that is not set leaves
/// what the launcher says.
struct TrainingFields {
  std::optional<MixedPrecision> mixed_precision;
  std::optional<ReduceDtype> reduce_dtype;
  std::optional<NanPolicy> nan_policy;
  std::optional<bool> stochastic_rounding;
  std::optional<bool> deterministic;
  std::optional<int> gradient_accumulation_steps;
  std::optional<double> gradient_clipping;

  bool operator==(const TrainingFields&) const = default;
};

/// A field that a program set.
struct ProgramValue {
  std::string field;  ///< as the plugin names it: `sharding_strategy`
  std::string key;    ///< the setting that it is: `fsdp_sharding_strategy`
  std::string text;

  bool operator==(const ProgramValue&) const = default;
};

/// What a program says for itself, by filling in a plugin. Empty plugin: nothing.
struct ProgramSettings {
  std::string plugin;  ///< the class, for messages
  std::string origin;  ///< its mode: `fsdp` or `deepspeed`
  std::vector<ProgramValue> values;
};

}  // namespace acc::plugins
