// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace acc::checkpoint {

/// Splits a file name from the front: "zero_pp_rank_", 3, "_mp_rank_00_model_states.pt".
class NameParser {
 public:
  explicit NameParser(std::string_view name) noexcept : left_(name) {}

  /// Removes `text` from the front of the rest. Returns false, and removes nothing, if it is not
  /// there.
  [[nodiscard]] bool take(std::string_view text) noexcept {
    if (!left_.starts_with(text)) {
      return false;
    }
    left_.remove_prefix(text.size());
    return true;
  }
  /// Removes a decimal number of at most nine digits. Returns nothing if there is no digit.
  [[nodiscard]] std::optional<int> number() noexcept {
    int value = 0;
    std::size_t digits = 0;
    while (digits < left_.size() && digits < 9 && left_[digits] >= '0' && left_[digits] <= '9') {
      value = value * 10 + (left_[digits++] - '0');
    }
    left_.remove_prefix(digits);
    return digits == 0 ? std::nullopt : std::optional(value);
  }
  [[nodiscard]] bool done() const noexcept { return left_.empty(); }

 private:
  std::string_view left_;
};

}  // namespace acc::checkpoint
