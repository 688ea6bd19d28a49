// SPDX-License-Identifier: Apache-2.0
// Finds the process that listens on a port, for the message of EADDRINUSE: /proc/net/tcp has the
// inode of the socket, and /proc/PID/fd the sockets of each process. Other users' processes cannot
// be read; then the message has the user id.
#include "acc/base/text.hpp"
#include "acc/rendezvous/server.hpp"
#include "net/peer_user.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <string_view>

namespace acc::rendezvous {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kListen = "0A";  // TCP_LISTEN in the kernel's tcp_states.h

// systemd keeps the sockets that it has bound for services open. The service is the better answer,
// so the search continues after systemd.
constexpr std::string_view kServiceManager = "systemd";

std::optional<SocketRow> find_listener(const char* table, std::uint16_t port) {
  const std::string end = fmt::format(":{:04X}", port);
  return find_socket(table, end + " ", [&](const SocketRow& row) {
    return row.state == kListen && row.local.ends_with(end);
  });
}

/// True if one of the process' descriptors is this socket: a link to "socket:[INODE]".
bool holds(const fs::path& process, const std::string& link) {
  std::error_code ignored;
  for (const auto& fd : fs::directory_iterator(process / "fd", ignored)) {
    if (fs::read_symlink(fd.path(), ignored) == link) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::optional<std::string> Server::port_owner(std::uint16_t port) {
  auto listener = find_listener("/proc/net/tcp", port);
  if (!listener) {
    listener = find_listener("/proc/net/tcp6", port);
  }
  if (!listener) {
    return std::nullopt;
  }
  const std::string link = fmt::format("socket:[{}]", listener->inode);
  std::string owner = fmt::format("a process of user id {}", listener->user);
  std::error_code ignored;
  for (const auto& process : fs::directory_iterator("/proc", ignored)) {
    const std::string pid = process.path().filename();
    if (pid.find_first_not_of("0123456789") == std::string::npos && holds(process.path(), link)) {
      std::string name;
      std::ifstream comm(process.path() / "comm");
      std::getline(comm, name);
      owner = fmt::format("{} (pid {})", printable(name), pid);
      if (name != kServiceManager) {
        break;
      }
    }
  }
  return owner;
}

}  // namespace acc::rendezvous
