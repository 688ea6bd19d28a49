#pragma once

#include <chrono>

namespace acc::device {

/// The host's steady clock, which events of every device are told in.
inline double host_microseconds() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace acc::device
