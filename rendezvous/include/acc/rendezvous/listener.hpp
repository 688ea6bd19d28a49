#pragma once

#include "acc/base/unique_fd.hpp"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace acc::rendezvous {

/// The file of a Unix socket, removed at the end unless another socket took its place.
class SocketFile {
 public:
  SocketFile() = default;
  /// Of a file that this process has just made.
  explicit SocketFile(std::filesystem::path path);
  SocketFile(SocketFile&& other) noexcept : path_(std::move(other.path_)), inode_(other.inode_) {
    other.path_.clear();
  }
  SocketFile& operator=(SocketFile&&) = delete;
  ~SocketFile();

 private:
  std::filesystem::path path_;  // empty: none
  std::uint64_t inode_ = 0;
};

/// A socket that listens, which a Server takes its clients from.
struct Listener {
  UniqueFd socket;
  std::string address;         ///< `127.0.0.1:29500`, `[::1]:29500` or `unix:/path`
  std::uint16_t port = 0;      ///< of TCP
  bool is_open = false;        ///< other machines may reach it
  bool is_everywhere = false;  ///< on all interfaces
  SocketFile file = {};
};

/// What an operator must know about a listener at `address` that is_open: one sentence.
std::string warning_of_open(const std::string& address);

/// Listens on every address of every host, all on one TCP port; 0 takes a free one. A host is an
/// address or name of this machine, "*" or "" for all interfaces (IPv4 and IPv6), or `unix:/path`,
/// whose file only this user may open; one that a dead process left there is replaced. Throws
/// Error(connection) that names host, port and errno, and who listens there already.
std::vector<Listener> listen_on(const std::vector<std::string>& hosts, std::uint16_t port);

/// Takes a socket that another process bound and made to listen. Throws Error(config) for anything
/// else.
Listener adopt(UniqueFd socket);

}  // namespace acc::rendezvous
