#pragma once

#include <span>
#include <string_view>

/// What a conversion cannot take along.
namespace acc::plugins {

/// A key without counterpart on the other side, where its value says something.
struct Loss {
  std::string_view key;
  std::string_view quiet;  ///< values that say nothing, joined by `|`
  std::string_view reason;
};

std::span<const Loss> lost_in_deepspeed() noexcept;  ///< of FSDP's
std::span<const Loss> lost_in_fsdp() noexcept;       ///< of DeepSpeed's
std::span<const Loss> lost_in_fsdp1() noexcept;      ///< of FSDP 2's
std::span<const Loss> lost_in_fsdp2() noexcept;      ///< of FSDP 1's

}  // namespace acc::plugins
