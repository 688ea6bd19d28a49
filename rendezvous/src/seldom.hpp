#pragma once

#include <chrono>

namespace acc::rendezvous {

/// Whether to log what a client can cause as often as it likes: once a second.
class Seldom {
 public:
  bool operator()() {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_) {
      return false;
    }
    next_ = now + std::chrono::seconds(1);
    return true;
  }

 private:
  std::chrono::steady_clock::time_point next_{};
};

}  // namespace acc::rendezvous
