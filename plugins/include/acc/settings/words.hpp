// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/text.hpp"
#include "acc/settings/program_settings.hpp"

#include <array>

namespace acc::settings {

/// Spelling of one value of an enumeration.
template <typename Enum>
struct Word {
  Enum value;
  std::string_view name;  ///< in messages (`to_string`)
  /// In the settings, with Accelerate's spelling; empty: no setting can have this value.
  std::string_view setting = name;
};
// clang before 17 deduces no arguments of aggregates by itself.
template <typename Enum>
Word(Enum, std::string_view) -> Word<Enum>;
template <typename Enum>
Word(Enum, std::string_view, std::string_view) -> Word<Enum>;

/// The words of an enumeration, in the order by which numbered choices count them.
template <typename Enum>
inline constexpr auto kWords = nullptr;
template <>
inline constexpr std::array kWords<Strategy> = {
    Word{Strategy::full_shard, "full_shard", "FULL_SHARD"},
    Word{Strategy::shard_grad_op, "shard_grad_op", "SHARD_GRAD_OP"},
    Word{Strategy::no_shard, "no_shard", "NO_SHARD"},
    Word{Strategy::hybrid_shard, "hybrid_shard", "HYBRID_SHARD"},
    Word{Strategy::hybrid_shard_zero2, "hybrid_shard_zero2", "HYBRID_SHARD_ZERO2"},
    Word{Strategy::shard_optimizer, "shard_optimizer", ""}};
template <>
inline constexpr std::array kWords<MixedPrecision> = {
    Word{MixedPrecision::no, "no"}, Word{MixedPrecision::fp16, "fp16"},
    Word{MixedPrecision::bf16, "bf16"}, Word{MixedPrecision::fp8, "fp8"}};
template <>
inline constexpr std::array kWords<ReduceDtype> = {Word{ReduceDtype::fp32, "fp32"},
                                                   Word{ReduceDtype::fp16, "fp16"},
                                                   Word{ReduceDtype::bf16, "bf16"}};
template <>
inline constexpr std::array kWords<StateDictType> = {
    Word{StateDictType::full, "full", "FULL_STATE_DICT"},
    Word{StateDictType::local, "local", "LOCAL_STATE_DICT"},
    Word{StateDictType::sharded, "sharded", "SHARDED_STATE_DICT"}};
template <>
inline constexpr std::array kWords<NanPolicy> = {Word{NanPolicy::ignore, "ignore"},
                                                 Word{NanPolicy::skip, "skip"},
                                                 Word{NanPolicy::raise, "raise"}};
template <>
inline constexpr std::array kWords<BackwardPrefetch> = {
    Word{BackwardPrefetch::backward_pre, "backward_pre", "BACKWARD_PRE"},
    Word{BackwardPrefetch::backward_post, "backward_post", "BACKWARD_POST"},
    Word{BackwardPrefetch::none, "none", "NO_PREFETCH"}};
template <>
inline constexpr std::array kWords<WrapPolicy> = {
    Word{WrapPolicy::transformer_based, "transformer_based", "TRANSFORMER_BASED_WRAP"},
    Word{WrapPolicy::size_based, "size_based", "SIZE_BASED_WRAP"},
    Word{WrapPolicy::no_wrap, "no_wrap", "NO_WRAP"}, Word{WrapPolicy::unset, "unset", ""}};
template <>
inline constexpr std::array kWords<OffloadDevice> = {Word{OffloadDevice::none, "none"},
                                                     Word{OffloadDevice::cpu, "cpu"},
                                                     Word{OffloadDevice::nvme, "nvme"}};
template <>
inline constexpr std::array kWords<Device> = {Word{Device::cpu, "cpu"}, Word{Device::cuda, "cuda"}};
template <>
inline constexpr std::array kWords<DeviceCollectives> = {Word{DeviceCollectives::automatic, "auto"},
                                                         Word{DeviceCollectives::nccl, "nccl"},
                                                         Word{DeviceCollectives::staged, "staged"}};

/// Returns the word of a value; one without texts if the table lacks it.
template <typename Enum>
constexpr Word<Enum> word_of(Enum value) noexcept {
  for (const Word<Enum>& word : kWords<Enum>) {
    if (word.value == value) {
      return word;
    }
  }
  return {value, "unknown", ""};
}

/// Returns the value that a setting's text names, or nullopt.
template <typename Enum>
constexpr std::optional<Enum> value_named(std::string_view setting) noexcept {
  for (const Word<Enum>& word : kWords<Enum>) {
    if (!setting.empty() && word.setting == setting) {
      return word.value;
    }
  }
  return std::nullopt;
}

/// Text of `kChoices`, with a separator after each word.
template <typename Enum>
inline constexpr auto kChoicesText = [] {
  constexpr std::size_t kSize = [] {
    std::size_t size = 0;
    for (const Word<Enum>& word : kWords<Enum>) {
      size += word.setting.empty() ? 0 : word.setting.size() + 1;
    }
    return size;
  }();
  std::array<char, kSize> text{};
  std::size_t end = 0;
  for (const Word<Enum>& word : kWords<Enum>) {
    for (const char c : word.setting) {
      text[end++] = c;
    }
    if (!word.setting.empty()) {
      text[end++] = '|';
    }
  }
  return text;
}();

/// The spellings that a setting can have, as in SettingRow::allowed.
template <typename Enum>
inline constexpr std::string_view kChoices(kChoicesText<Enum>.data(),
                                           kChoicesText<Enum>.size() - 1);

}  // namespace acc::settings
