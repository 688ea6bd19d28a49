#pragma once

#include "acc/base/error.hpp"

#include <mutex>
#include <optional>
#include <string>

namespace acc::collectives {

/// Why a group ended: the first reason counts. Any thread.
class FirstFailure {
 public:
  void set(const std::string& reason) noexcept {
    const std::lock_guard lock(mutex_);
    if (!reason_) {
      reason_ = reason;
    }
  }
  [[nodiscard]] std::optional<std::string> get() const {
    const std::lock_guard lock(mutex_);
    return reason_;
  }
  void throw_if() const {
    if (const auto reason = get()) {
      throw Error(Errc::collective, *reason);
    }
  }

 private:
  mutable std::mutex mutex_;  ///< guards reason_
  std::optional<std::string> reason_;
};

}  // namespace acc::collectives
