// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/plugins/program_settings.hpp"
#include "acc/plugins/settings.hpp"

#include <array>

/// Spelling of enumeration values in the settings, which is Accelerate's: `FULL_SHARD`,
/// `BACKWARD_PRE`, `SHARDED_STATE_DICT`.
namespace acc::plugins {

inline std::string word_of(Strategy value) {
  return upper(to_string(value));
}
inline std::string word_of(BackwardPrefetch value) {
  return value == BackwardPrefetch::none ? "NO_PREFETCH" : upper(to_string(value));
}
inline std::string word_of(StateDictType value) {
  return upper(to_string(value)) + "_STATE_DICT";
}
inline std::string word_of(WrapPolicy value) {
  return upper(to_string(value)) + (value == WrapPolicy::no_wrap ? "" : "_WRAP");
}
inline std::string word_of(OffloadDevice value) {
  return std::string(to_string(value));
}
inline std::string word_of(MixedPrecision value) {
  return std::string(to_string(value));
}
inline std::string word_of(ReduceDtype value) {
  return std::string(to_string(value));
}
inline std::string word_of(NanPolicy value) {
  return std::string(to_string(value));
}

/// All values of an enumeration that a setting can name.
template <typename Enum>
inline constexpr std::array<Enum, 0> kValuesOf{};
template <>
inline constexpr std::array kValuesOf<Strategy> = {Strategy::full_shard, Strategy::shard_grad_op,
                                                   Strategy::no_shard, Strategy::hybrid_shard,
                                                   Strategy::hybrid_shard_zero2};
template <>
inline constexpr std::array kValuesOf<BackwardPrefetch> = {
    BackwardPrefetch::none, BackwardPrefetch::backward_pre, BackwardPrefetch::backward_post};
template <>
inline constexpr std::array kValuesOf<StateDictType> = {StateDictType::full, StateDictType::local,
                                                        StateDictType::sharded};
template <>
inline constexpr std::array kValuesOf<WrapPolicy> = {WrapPolicy::transformer_based,
                                                     WrapPolicy::size_based, WrapPolicy::no_wrap};
template <>
inline constexpr std::array kValuesOf<OffloadDevice> = {OffloadDevice::none, OffloadDevice::cpu,
                                                        OffloadDevice::nvme};
template <>
inline constexpr std::array kValuesOf<MixedPrecision> = {MixedPrecision::no, MixedPrecision::fp16,
                                                         MixedPrecision::bf16, MixedPrecision::fp8};
template <>
inline constexpr std::array kValuesOf<ReduceDtype> = {ReduceDtype::fp32, ReduceDtype::fp16,
                                                      ReduceDtype::bf16};
template <>
inline constexpr std::array kValuesOf<NanPolicy> = {NanPolicy::ignore, NanPolicy::skip,
                                                    NanPolicy::raise};

/// Returns the enumeration value of a setting, or nullopt if the setting has no value.
template <typename Enum>
std::optional<Enum> value_named(const Settings& settings, SettingKey key) {
  const std::string word = settings.choice(key);
  for (const Enum value : kValuesOf<Enum>) {
    if (word_of(value) == word) {
      return value;
    }
  }
  return std::nullopt;
}

}  // namespace acc::plugins
