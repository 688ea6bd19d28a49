#pragma once

#include "acc/base/unique_fd.hpp"

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace acc::rendezvous {

/// Tells the service manager that started this process (systemd, or one that speaks as it does)
/// how the service is. Without one, that is without $NOTIFY_SOCKET, nothing happens.
class ServiceManager {
 public:
  ServiceManager();

  [[nodiscard]] bool listens() const noexcept { return !address_.empty(); }
  /// Lines such as `READY=1`. One that cannot be told is logged, and no failure.
  void tell(std::string_view state) const;

 private:
  std::string address_;  // a path, or a name that begins with a zero byte
  UniqueFd socket_;
};

/// How often the service manager wants to hear WATCHDOG=1 at least; nothing: not at all.
std::optional<std::chrono::microseconds> watchdog_limit();

/// Sockets that the service manager has bound for this process ($LISTEN_FDS).
std::vector<UniqueFd> inherited_sockets();

}  // namespace acc::rendezvous
