#pragma once

#include "acc/base/unique_fd.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace acc::rendezvous {

/// A TCP connection with a deadline on every call, on a non-blocking socket and poll. Throws
/// Error(timeout) at the deadline and Error(connection) when the peer is gone.
class SocketStream {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  SocketStream() = default;
  /// Tries each address of `host` once.
  SocketStream(const std::string& host, std::uint16_t port, TimePoint deadline);

  void write(std::string_view bytes, TimePoint deadline);
  void read(char* bytes, std::size_t count, TimePoint deadline);
  /// True as soon as there is something to read (or the peer is gone), false at the deadline.
  [[nodiscard]] bool readable(TimePoint deadline) const;

  explicit operator bool() const noexcept { return static_cast<bool>(fd_); }
  void close() noexcept { fd_.reset(); }

 private:
  bool ready(short events, TimePoint deadline) const;

  UniqueFd fd_;
};

}  // namespace acc::rendezvous
