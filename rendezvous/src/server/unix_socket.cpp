#include "server/unix_socket.hpp"

#include "acc/base/error.hpp"
#include "acc/rendezvous/server.hpp"
#include "acc/rendezvous/unix_address.hpp"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <fstream>

namespace acc::rendezvous {
namespace {

[[noreturn]] void fail(const std::string& host, const std::string& why) {
  throw Error(Errc::connection, fmt::format("cannot listen on {}: {}", host, why));
}

std::string errno_text() {
  return fmt::format("{} (errno {})", std::strerror(errno), errno);
}

UniqueFd unix_socket() {
  return UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

const sockaddr* pointer(const sockaddr_un& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

/// Returns the process that listens at the other end of a connected socket: "NAME (pid 123)". For a
/// connecting socket SO_PEERCRED has the credentials of the listener (unix(7)).
std::string owner_of(const UniqueFd& client) {
  ucred owner{};
  socklen_t size = sizeof owner;
  ::getsockopt(client.get(), SOL_SOCKET, SO_PEERCRED, &owner, &size);
  std::ifstream comm(fmt::format("/proc/{}/comm", owner.pid));
  std::string name;
  std::getline(comm, name);
  return fmt::format("{} (pid {})", name.empty() ? "a process" : name, owner.pid);
}

/// Removes the file of a Unix socket that a dead process left behind: connecting to it fails with
/// ECONNREFUSED. Throws if a process listens on it or if it is not a socket.
void remove_stale(const std::string& host, const sockaddr_un& address) {
  struct stat status {};
  if (::lstat(address.sun_path, &status) != 0) {
    return;
  }
  if (!S_ISSOCK(status.st_mode)) {
    fail(host, "the path is a file, which is not a socket. Choose another path");
  }
  const UniqueFd client = unix_socket();
  const bool answers = ::connect(client.get(), pointer(address), sizeof address) == 0;
  if (answers) {
    fail(host, owner_of(client) + " listens there. Choose another path");
  }
  if (errno == EAGAIN) {
    fail(host, "a process listens there, and its queue is full. Choose another path");
  }
  if (errno != ECONNREFUSED || ::unlink(address.sun_path) != 0) {
    fail(host, errno_text());
  }
}

}  // namespace

SocketFile::SocketFile(std::filesystem::path path) : path_(std::move(path)) {
  struct stat status {};
  inode_ = ::lstat(path_.c_str(), &status) == 0 ? status.st_ino : 0;
}

SocketFile::~SocketFile() {
  struct stat status {};
  if (!path_.empty() && ::lstat(path_.c_str(), &status) == 0 && status.st_ino == inode_) {
    ::unlink(path_.c_str());
  }
}

Listener listen_on_unix(const std::string& host) {
  if (const std::string fault = unix_fault(host); !fault.empty()) {
    fail(host, fault);
  }
  const sockaddr_un address = unix_address(host);
  remove_stale(host, address);
  UniqueFd socket = unix_socket();
  // Before bind(2), which creates the file with the mode of the socket: at no moment can other
  // users open it.
  ::fchmod(socket.get(), S_IRUSR | S_IWUSR);
  if (::bind(socket.get(), pointer(address), sizeof address) != 0) {
    fail(host, errno_text());
  }
  SocketFile file(address.sun_path);
  if (::listen(socket.get(), SOMAXCONN) != 0) {
    fail(host, errno_text());
  }
  return {.socket = std::move(socket), .address = host, .file = std::move(file)};
}

}  // namespace acc::rendezvous
