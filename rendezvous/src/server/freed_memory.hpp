// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "server/turns.hpp"

#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstddef>

namespace acc::rendezvous {

/// Returns freed memory to the system. glibc keeps free memory that lies below memory in use: after
/// a load of large requests that can be a sixth of their peak, for as long as the process lives.
class FreedMemory {
 public:
  explicit FreedMemory(Turns& turns) : timer_(turns, [] { malloc_trim(0); }) {}

  /// Takes the number of bytes that are in use now. A second after they have fallen by 64 MiB, free
  /// memory is returned; the time between bounds what that costs under a lasting load.
  void note(std::size_t in_use) {
    most_ = std::max(most_, in_use);
    if (most_ - in_use < kWorthReturning || timer_.is_set()) {
      return;
    }
    most_ = in_use;
    timer_.after(std::chrono::seconds(1));
  }

 private:
  static constexpr std::size_t kWorthReturning = std::size_t{64} << 20;

  Turns::Timer timer_;
  std::size_t most_ = 0;  // most bytes in use since the timer was set
};

}  // namespace acc::rendezvous
