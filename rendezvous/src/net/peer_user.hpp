// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace acc::rendezvous {

/// A row of the kernel's table of TCP sockets, /proc/net/tcp (proc_pid_net(5)).
struct SocketRow {
  std::string local;  ///< ADDRESS:PORT in hexadecimal digits, as are the next two
  std::string remote;
  std::string state;
  uid_t user = 0;
  std::uint64_t inode = 0;
};
/// Returns the first row with this text for which `is_wanted`; nothing without one.
std::optional<SocketRow> find_socket(const char* table, const std::string& text,
                                     const std::function<bool(const SocketRow&)>& is_wanted);

/// Finds the users at the other ends of connections of this machine.
class PeerUsers {
 public:
  PeerUsers();
  /// Returns the user of the process at the other end of a connected socket, of TCP on loopback or
  /// a Unix socket. Nothing if the other end is closed or on another machine, or if the kernel does
  /// not tell. Takes the same time however many sockets there are.
  std::optional<uid_t> user_of(int socket);
  /// True if the other end is of this process' own user or of root. Searches the table of all
  /// sockets if the kernel has no other way; true without any way to know.
  bool is_own(int socket);

 private:
  enum class Found { yes, no, unknown };
  struct Answer {
    Found found = Found::unknown;
    uid_t user = 0;
  };
  struct Ends;

  Answer ask(int socket);
  Answer ask_kernel(const Ends& ends);

  UniqueFd kernel_;  // netlink socket; none if the system does not permit it
  bool has_kernel_ = true;
};

}  // namespace acc::rendezvous
