// SPDX-License-Identifier: Apache-2.0
// Finds the process that listens on a port, for the message of EADDRINUSE: /proc/net/tcp has the
// inode of the socket, and /proc/PID/fd the sockets of each process. Other users' processes cannot
// be read; then the message has the user id.
#include "acc/base/text.hpp"
#include "acc/rendezvous/server.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>

namespace acc::rendezvous {
namespace {

namespace fs = std::filesystem;

constexpr int kListen = 0x0A;  // TCP_LISTEN in the kernel's tcp_states.h

// systemd keeps the sockets that it has bound for services open. The service is the better answer,
// so the search continues after systemd.
constexpr std::string_view kServiceManager = "systemd";

struct ListeningSocket {
  std::string inode;
  std::string uid;
};

/// Finds the listening socket of a port. Columns of /proc/net/tcp (proc_pid_net(5)): slot, local
/// address:port, remote address:port, state, queues, timer, retransmits, uid, timeout, inode.
/// Addresses, ports and states are hexadecimal.
std::optional<ListeningSocket> find_listener(const char* table, std::uint16_t port) {
  std::ifstream file(table);
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::istringstream row(line);
    std::string slot, local, remote, state, queues, timer, retransmits, timeout;
    ListeningSocket listener;
    row >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> listener.uid >>
        timeout >> listener.inode;
    const auto colon = local.rfind(':');
    if (row && colon != std::string::npos && std::stoi(state, nullptr, 16) == kListen &&
        std::stoi(local.substr(colon + 1), nullptr, 16) == port) {
      return listener;
    }
  }
  return std::nullopt;
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
  const std::string link = "socket:[" + listener->inode + "]";
  std::string owner = fmt::format("a process of user id {}", listener->uid);
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
