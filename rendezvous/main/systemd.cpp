// SPDX-License-Identifier: Apache-2.0
// The service manager's protocol as systemd's manual pages sd_notify(3), sd_watchdog_enabled(3) and
// sd_listen_fds(3) describe it, without a dependency on libsystemd.
#include "systemd.hpp"

#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "acc/base/text.hpp"
#include "acc/base/variables.hpp"
#include "acc/settings/settings.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

namespace acc::rendezvous {
namespace {

constexpr int kFirstInherited = 3;  // SD_LISTEN_FDS_START

std::string text_of(const char* variable) {
  return process_variable(variable).value_or("");
}

/// True if the variables of the service manager are meant for this process: a child inherits those
/// of its parent.
bool are_for_us(const char* pid_variable) {
  const std::string pid = text_of(pid_variable);
  return pid.empty() || pid == std::to_string(::getpid());
}

}  // namespace

ServiceManager::ServiceManager() : address_(text_of("NOTIFY_SOCKET")) {
  if (address_.empty()) {
    return;
  }
  if ((address_[0] != '/' && address_[0] != '@') ||
      address_.size() >= sizeof(sockaddr_un::sun_path)) {
    logger(Component::rendezvous)
        .warn("NOTIFY_SOCKET must be /path or @name, got \"{}\"", address_);
    address_.clear();
    return;
  }
  // An abstract name begins with a zero byte in sockaddr_un (unix(7)).
  std::replace(address_.begin(), address_.begin() + 1, '@', '\0');
  socket_.reset(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
}

void ServiceManager::notify(std::string_view state) const {
  if (!listens()) {
    return;
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  address_.copy(address.sun_path, address_.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address_.size());
  if (::sendto(socket_.get(), state.data(), state.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
               reinterpret_cast<const sockaddr*>(&address), size) < 0) {
    const int error = errno;
    logger(Component::rendezvous)
        .warn("cannot notify the service manager at {}: {}", address_, std::strerror(error));
  }
}

std::optional<std::chrono::microseconds> watchdog_limit() {
  const auto limit = parse_integer(text_of("WATCHDOG_USEC"));
  if (!limit || *limit <= 0 || !are_for_us("WATCHDOG_PID")) {
    return std::nullopt;
  }
  return std::chrono::microseconds(*limit);
}

std::vector<UniqueFd> inherited_sockets() {
  std::vector<UniqueFd> sockets;
  if (text_of("LISTEN_PID") != std::to_string(::getpid())) {
    return sockets;
  }
  const std::string text = text_of("LISTEN_FDS");
  const auto count = parse_integer(text);
  if (!count || *count < 0) {
    throw Error(Errc::config,
                fmt::format("LISTEN_FDS={}, expected the number of sockets", printable(text)));
  }
  for (int fd = kFirstInherited; fd - kFirstInherited < *count; ++fd) {
    if (::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {  // systemd passes them without it
      throw Error(Errc::config,
                  fmt::format("LISTEN_FDS={}, but descriptor {} is not open", text, fd));
    }
    sockets.emplace_back(fd);
  }
  return sockets;
}

}  // namespace acc::rendezvous
