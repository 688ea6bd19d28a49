#pragma once

#include "acc/base/unique_fd.hpp"

#include <cstdint>
#include <span>
#include <thread>
#include <vector>

namespace acc::doctor {

/// What a machine answers to one byte.
struct Answer {
  std::uint64_t token = 0;    ///< whose answer this is
  std::int64_t clock_ns = 0;  ///< its real-time clock
};

/// Listens on ports spread over the range from which the system takes free ones, on all addresses
/// of the machine, and answers on a thread of its own until it is destroyed.
class Answering {
 public:
  /// Ports within the range: a firewall may open a part of it.
  static constexpr int kPorts = 4;

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
  UniqueFd wake_;
  std::jthread thread_;
};

}  // namespace acc::doctor
