// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/plugins/settings_table.hpp"

#include <span>
#include <string_view>

/// Settings that a conversion cannot keep.
namespace acc::plugins {

/// A setting without a counterpart in the target form.
struct ConversionWarning {
  SettingKey key;
  std::string_view quiet;   ///< values whose loss changes nothing, joined by `|`: no warning
  std::string_view reason;  ///< second half of the warning
};

std::span<const ConversionWarning> lost_in_deepspeed() noexcept;  ///< settings of FSDP
std::span<const ConversionWarning> lost_in_fsdp() noexcept;       ///< settings of DeepSpeed
std::span<const ConversionWarning> lost_in_fsdp1() noexcept;      ///< settings of FSDP 2
std::span<const ConversionWarning> lost_in_fsdp2() noexcept;      ///< settings of FSDP 1

}  // namespace acc::plugins
