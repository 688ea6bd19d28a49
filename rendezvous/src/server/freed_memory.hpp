// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <utility>

namespace acc {

/// Returns freed memory to the system. glibc keeps free memory that lies below memory in use: after
/// a load of large requests that can be a sixth of their peak, for as long as the process lives.
class FreedMemory {
 public:
  explicit FreedMemory(boost::asio::io_context& io) : timer_(io) {}

  /// Takes the number of bytes that are in use now. A second after they have fallen by 64 MiB, free
  /// memory is returned; the time between bounds what that costs under a lasting load. `owner`
  /// keeps this object alive until then or until `cancel`.
  void note(std::size_t in_use, std::shared_ptr<const void> owner) {
    most_ = std::max(most_, in_use);
    if (most_ - in_use < kWorthReturning || waits_) {
      return;
    }
    waits_ = true;
    most_ = in_use;
    timer_.expires_after(std::chrono::seconds(1));
    timer_.async_wait([this, owner = std::move(owner)](const boost::system::error_code& error) {
      waits_ = false;
      if (!error) {
        malloc_trim(0);
      }
    });
  }

  void cancel() { timer_.cancel(); }

 private:
  static constexpr std::size_t kWorthReturning = std::size_t{64} << 20;

  boost::asio::steady_timer timer_;
  std::size_t most_ = 0;  // most bytes in use since the timer was set
  bool waits_ = false;
};

}  // namespace acc
