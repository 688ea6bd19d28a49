// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/error.hpp"

#include <mutex>
#include <optional>
#include <string>

namespace acc::collectives {

/// The reason for which a group ended. The first reason is kept and later ones are ignored, because
/// they are usually consequences of the first. Any thread.
class FirstFailure {
 public:
  /// `at_fault`: the global rank that caused the failure, if known. code: peer_lost, or any other
  /// for collective.
  void set(const std::string& reason, std::optional<int> at_fault = std::nullopt,
           Errc code = Errc::collective) noexcept {
    const std::lock_guard lock(mutex_);
    if (!reason_) {
      reason_ = reason;
      at_fault_ = at_fault;
      code_ = code == Errc::peer_lost ? code : Errc::collective;
    }
  }
  [[nodiscard]] std::optional<std::string> get() const {
    const std::lock_guard lock(mutex_);
    return reason_;
  }
  [[nodiscard]] std::optional<int> at_fault() const {
    const std::lock_guard lock(mutex_);
    return at_fault_;
  }
  [[nodiscard]] Errc code() const {
    const std::lock_guard lock(mutex_);
    return code_;
  }
  /// Throws Error(collective | peer_lost) with the reason if there is one.
  void throw_if() const {
    if (const auto reason = get()) {
      throw Error(code(), *reason, at_fault());
    }
  }

 private:
  mutable std::mutex mutex_;  ///< guards reason_, at_fault_, code_
  std::optional<std::string> reason_;
  std::optional<int> at_fault_;
  Errc code_ = Errc::collective;
};

}  // namespace acc::collectives
