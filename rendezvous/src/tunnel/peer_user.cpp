// SPDX-License-Identifier: Apache-2.0
// The user at the other end of a loopback connection. TCP has no SO_PEERCRED, but both ends are in
// this machine's table of sockets: proc_pid_net(5), /proc/net/tcp.
#include "tunnel/peer_user.hpp"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

namespace acc::rendezvous {
namespace {

/// The form in which the kernel prints an address: hexadecimal words in host order.
std::string in_table(const sockaddr_in& address) {
  return fmt::format("{:08X}:{:04X}", address.sin_addr.s_addr, ntohs(address.sin_port));
}

/// The same for a socket of IPv6 that is connected to an IPv4 address (::ffff:127.0.0.1).
std::string in_table6(const sockaddr_in& address) {
  return "0000000000000000FFFF0000" + in_table(address);
}

/// Returns the user id of a socket with these two addresses. A socket that its process has closed
/// counts as missing: it has no inode, and the kernel shows root as its user.
std::optional<uid_t> find_user(const char* table, const std::string& local,
                               const std::string& remote) {
  std::ifstream file(table);
  const std::string wanted = local + " " + remote + " ";
  std::string line;
  while (std::getline(file, line)) {
    if (line.find(wanted) == std::string::npos) {
      continue;
    }
    std::istringstream row(line);
    std::string slot, from, to, state, queues, timer, retransmits, timeout;
    uid_t user = 0;
    std::uint64_t inode = 0;
    if (row >> slot >> from >> to >> state >> queues >> timer >> retransmits >> user >> timeout >>
            inode &&
        inode != 0) {
      return user;
    }
  }
  return std::nullopt;
}

}  // namespace

bool is_own_users(int socket) {
  sockaddr_in peer{};
  sockaddr_in own{};
  socklen_t size = sizeof peer;
  socklen_t own_size = sizeof own;
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &size) != 0 ||
      ::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &own_size) != 0 ||
      peer.sin_family != AF_INET) {
    return false;
  }
  auto user = find_user("/proc/net/tcp", in_table(peer), in_table(own));
  if (!user) {
    user = find_user("/proc/net/tcp6", in_table6(peer), in_table6(own));
  }
  if (!user) {
    // A client that is gone, or a kernel without tables. Any other error, such as a lack of
    // descriptors, admits nobody.
    return ::access("/proc/net/tcp", F_OK) != 0 && errno == ENOENT;
  }
  return *user == ::geteuid() || *user == 0;
}

}  // namespace acc::rendezvous
