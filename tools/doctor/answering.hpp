// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"

#include <cstdint>
#include <span>
#include <thread>
#include <vector>

namespace acc::doctor {

/// Reply to a probe, which is one byte. 16 bytes in the byte order of the machine.
struct Answer {
  std::uint64_t token = 0;    ///< identifies the machine that answers
  std::int64_t clock_ns = 0;  ///< its real-time clock, nanoseconds since 1970
};

/// Listens on all addresses of the machine, on ports spread over the range of ephemeral ports, and
/// answers probes on a separate thread until it is destroyed.
class Answering {
 public:
  /// Number of ports. Several, because a firewall may open only a part of the range.
  static constexpr int kPorts = 4;

  /// Throws Error(connection) if it cannot listen on any port.
  Answering(int port_low, int port_high, std::uint64_t token);
  ~Answering();
  Answering(const Answering&) = delete;
  Answering& operator=(const Answering&) = delete;

  [[nodiscard]] const std::vector<std::uint16_t>& ports() const noexcept { return ports_; }

 private:
  void serve(const std::stop_token& stop) const;

  std::uint64_t token_;
  std::vector<UniqueFd> listeners_;
  std::vector<std::uint16_t> ports_;
  UniqueFd wake_;  ///< eventfd that ends the thread's poll
  std::jthread thread_;
};

}  // namespace acc::doctor
