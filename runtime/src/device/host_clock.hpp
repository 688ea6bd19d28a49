// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace acc::device {

/// Current time of the host's steady clock in microseconds. Times of events of all devices use it.
inline double host_microseconds() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace acc::device
