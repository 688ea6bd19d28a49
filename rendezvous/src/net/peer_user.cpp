// SPDX-License-Identifier: Apache-2.0
// The user at the other end of a connection. A Unix socket has SO_PEERCRED. TCP has not, but both
// ends of a connection on loopback are sockets of this machine: sock_diag(7) finds the other one by
// its addresses. Without sock_diag there is the table of all sockets: proc_pid_net(5),
// /proc/net/tcp.
#include "net/peer_user.hpp"

#include <fmt/format.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

namespace acc::rendezvous {

std::optional<SocketRow> find_socket(const char* table, const std::string& text,
                                     const std::function<bool(const SocketRow&)>& is_wanted) {
  std::ifstream file(table);
  std::string line;
  while (std::getline(file, line)) {
    if (line.find(text) == std::string::npos) {
      continue;
    }
    std::istringstream columns(line);
    std::string slot, queues, timer, retransmits, timeout;
    SocketRow row;
    columns >> slot >> row.local >> row.remote >> row.state >> queues >> timer >> retransmits >>
        row.user >> timeout >> row.inode;
    if (columns && is_wanted(row)) {
      return row;
    }
  }
  return std::nullopt;
}

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
  const auto row = find_socket(table, local + " " + remote + " ",
                               [](const SocketRow& each) { return each.inode != 0; });
  return row ? std::optional(row->user) : std::nullopt;
}

/// Returns the user of the other end by the table of all sockets; nothing if it is closed.
std::optional<uid_t> user_in_table(const sockaddr_in& peer, const sockaddr_in& own) {
  const auto user = find_user("/proc/net/tcp", in_table(peer), in_table(own));
  return user ? user : find_user("/proc/net/tcp6", in_table6(peer), in_table6(own));
}

bool is_own_user(uid_t user) {
  return user == ::geteuid() || user == 0;
}

}  // namespace

/// Addresses of both ends of a connection.
struct PeerUsers::Ends {
  sockaddr_storage peer{};
  sockaddr_storage own{};

  /// False: not a connected socket.
  bool read(int socket) {
    socklen_t size = sizeof peer;
    socklen_t own_size = sizeof own;
    return ::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &size) == 0 &&
           ::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &own_size) == 0;
  }
  [[nodiscard]] bool is_loopback() const {
    if (peer.ss_family == AF_INET) {
      return (ntohl(reinterpret_cast<const sockaddr_in&>(peer).sin_addr.s_addr) >> 24U) ==
             IN_LOOPBACKNET;
    }
    return peer.ss_family == AF_INET6 &&
           IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(peer).sin6_addr);
  }
  /// The other end's view: its own addresses are this end's peer.
  [[nodiscard]] Ends reversed() const { return {own, peer}; }
};

namespace {

/// Copies address and port of one end into a question for the kernel.
void put_end(const sockaddr_storage& end, __be32* address, __be16& port) {
  if (end.ss_family == AF_INET) {
    const auto& ip = reinterpret_cast<const sockaddr_in&>(end);
    std::memcpy(address, &ip.sin_addr, sizeof ip.sin_addr);
    port = ip.sin_port;
  } else {
    const auto& ip = reinterpret_cast<const sockaddr_in6&>(end);
    std::memcpy(address, &ip.sin6_addr, sizeof ip.sin6_addr);
    port = ip.sin6_port;
  }
}

}  // namespace

/// Opened at once: later all descriptors may be in use.
PeerUsers::PeerUsers()
    : kernel_(::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_SOCK_DIAG)) {}

/// Asks for the socket whose own end is `ends.peer`. A socket that its process has closed counts as
/// missing: it has no inode, and the kernel shows root as its user.
PeerUsers::Answer PeerUsers::ask_kernel(const Ends& ends) {
  struct {
    nlmsghdr head;
    inet_diag_req_v2 what;
  } question{};
  question.head.nlmsg_len = sizeof question;
  question.head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  question.head.nlmsg_flags = NLM_F_REQUEST;
  question.what.sdiag_family = static_cast<__u8>(ends.peer.ss_family);
  question.what.sdiag_protocol = IPPROTO_TCP;
  question.what.idiag_states = ~0U;
  put_end(ends.peer, question.what.id.idiag_src, question.what.id.idiag_sport);
  put_end(ends.own, question.what.id.idiag_dst, question.what.id.idiag_dport);
  question.what.id.idiag_cookie[0] = question.what.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  if (!kernel_ || ::send(kernel_.get(), &question, sizeof question, 0) < 0) {
    return {};
  }
  alignas(nlmsghdr) std::array<char, 4096> reply{};
  const ssize_t size = ::recv(kernel_.get(), reply.data(), reply.size(), 0);  // it is there already
  const auto* const head = reinterpret_cast<const nlmsghdr*>(reply.data());
  if (size < 0 || !NLMSG_OK(head, static_cast<std::size_t>(size))) {
    return {};
  }
  if (head->nlmsg_type != SOCK_DIAG_BY_FAMILY ||
      head->nlmsg_len < NLMSG_LENGTH(sizeof(inet_diag_msg))) {
    return {Found::no};
  }
  const auto* const socket = static_cast<const inet_diag_msg*>(NLMSG_DATA(head));
  return socket->idiag_inode != 0 ? Answer{Found::yes, socket->idiag_uid} : Answer{Found::no};
}

PeerUsers::Answer PeerUsers::ask(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  Ends ends;
  if (!ends.read(socket)) {
    return {Found::no};
  }
  if (ends.peer.ss_family == AF_UNIX || ends.own.ss_family == AF_UNIX) {
    const bool is_known =
        ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.pid != 0;
    return is_known ? Answer{Found::yes, peer.uid} : Answer{Found::no};
  }
  if (!ends.is_loopback()) {
    return {Found::no};
  }
  if (!has_kernel_) {
    return {};
  }
  const Answer answer = ask_kernel(ends);
  if (answer.found == Found::yes) {
    return answer;
  }
  // This end exists for certain: if the kernel does not know it, it knows none.
  has_kernel_ = ask_kernel(ends.reversed()).found == Found::yes;
  return has_kernel_ ? answer : Answer{};
}

std::optional<uid_t> PeerUsers::user_of(int socket) {
  const Answer answer = ask(socket);
  return answer.found == Found::yes ? std::optional(answer.user) : std::nullopt;
}

bool PeerUsers::is_own(int socket) {
  const Answer answer = ask(socket);
  if (answer.found != Found::unknown) {
    return answer.found == Found::yes && is_own_user(answer.user);
  }
  Ends ends;
  if (!ends.read(socket) || ends.peer.ss_family != AF_INET) {
    return false;
  }
  if (const auto user = user_in_table(reinterpret_cast<const sockaddr_in&>(ends.peer),
                                      reinterpret_cast<const sockaddr_in&>(ends.own))) {
    return is_own_user(*user);
  }
  // A client that is gone, or a kernel without tables. Any other error, such as a lack of
  // descriptors, admits nobody.
  return ::access("/proc/net/tcp", F_OK) != 0 && errno == ENOENT;
}

}  // namespace acc::rendezvous
