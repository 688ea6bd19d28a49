// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace acc::rendezvous {

/// Reports the state of the service to the service manager that started this process (systemd or a
/// compatible one). Does nothing without $NOTIFY_SOCKET.
class ServiceManager {
 public:
  ServiceManager();

  /// True if there is a service manager.
  [[nodiscard]] bool listens() const noexcept { return !address_.empty(); }
  /// Sends lines such as `READY=1`. A failure is only logged.
  void notify(std::string_view state) const;

 private:
  std::string address_;  // a path, or a name that begins with a zero byte
  UniqueFd socket_;
};

/// Returns the longest interval of WATCHDOG=1 messages that the service manager accepts
/// ($WATCHDOG_USEC); nothing if it expects none.
std::optional<std::chrono::microseconds> watchdog_limit();

/// Returns the listening sockets that the service manager has passed to this process ($LISTEN_FDS).
/// Throws Error(config) if it does not say how many descriptors are open from 3 on.
std::vector<UniqueFd> inherited_sockets();

}  // namespace acc::rendezvous
