// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace acc::rendezvous {

/// Owns a file, such as that of a Unix socket. The destructor removes it, unless another one has
/// replaced it (compared by inode).
class OwnedFile {
 public:
  OwnedFile() = default;
  /// Takes ownership of a file that this process has just created.
  explicit OwnedFile(std::filesystem::path path);
  OwnedFile(OwnedFile&& other) noexcept : path_(std::move(other.path_)), inode_(other.inode_) {
    other.path_.clear();
  }
  OwnedFile& operator=(OwnedFile&&) = delete;
  ~OwnedFile();

 private:
  std::filesystem::path path_;  // empty: none
  std::uint64_t inode_ = 0;
};

/// A listening socket from which a Server accepts its clients.
struct Listener {
  UniqueFd socket;
  std::string address;         ///< `127.0.0.1:29500`, `[::1]:29500` or `unix:/path`
  std::uint16_t port = 0;      ///< TCP port; 0 for a Unix socket
  bool is_open = false;        ///< true if other machines may reach it (not loopback)
  bool is_everywhere = false;  ///< true if it listens on all interfaces
  OwnedFile file = {};
};

/// Returns a warning for the operator about a listener at `address` with is_open: the protocol has
/// no authentication.
std::string warning_of_open(const std::string& address);

/// Listens on every address of every host, on one common TCP port; port 0 picks a free one. A host
/// is an address or name of this machine, "*" or "" for all interfaces (IPv4 and IPv6), or
/// `unix:/path`. The file of a Unix socket has mode 0600 and replaces a file that a dead process
/// left behind. Throws Error(connection) with host, port, errno and the process that holds the
/// port.
std::vector<Listener> listen_on(const std::vector<std::string>& hosts, std::uint16_t port);

/// The same, but returns nothing if the port is in use (EADDRINUSE).
std::optional<std::vector<Listener>> listen_unless_in_use(const std::vector<std::string>& hosts,
                                                          std::uint16_t port);

/// Adopts a listening socket that another process created (systemd socket activation). Throws
/// Error(config) if the descriptor is not a listening stream socket of TCP or Unix.
Listener adopt(UniqueFd socket);

}  // namespace acc::rendezvous
