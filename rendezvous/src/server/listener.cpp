// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/listener.hpp"

#include "acc/base/error.hpp"
#include "acc/base/text.hpp"
#include "acc/rendezvous/host_addresses.hpp"
#include "acc/rendezvous/server.hpp"
#include "acc/rendezvous/unix_address.hpp"
#include "net/socket_name.hpp"
#include "net/tune_socket.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_future.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>

namespace acc::rendezvous {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

// Attempts with port 0: the port that the kernel chose for the first address may be in use on the
// second one.
constexpr int kFreePortTries = 16;

/// A host and the endpoints that its name resolves to.
struct Host {
  std::string name;
  std::vector<tcp::endpoint> endpoints;
};

struct Failure {
  std::string host;
  int error = 0;
};

[[noreturn]] void fail(const Failure& failure, std::uint16_t port) {
  std::string message = fmt::format("cannot listen on {}:{}: {} (errno {})",
                                    failure.host.empty() ? "*" : failure.host, port,
                                    std::strerror(failure.error), failure.error);
  if (failure.error == EADDRINUSE) {
    const auto owner = Server::port_owner(port);
    message +=
        fmt::format("; {} listens there. Choose another port", owner.value_or("another socket"));
  }
  throw Error(Errc::connection, message);
}

/// Resolves a host. Blocks; runs the asynchronous look-up on an io_context of its own.
std::vector<tcp::endpoint> resolve(const std::string& host, std::uint16_t port) {
  if (host.empty() || host == "*") {
    return {{asio::ip::address_v4::any(), port}, {asio::ip::address_v6::any(), port}};
  }
  asio::io_context io;
  auto answer = asio::co_spawn(io, addresses_of(io.get_executor(), host), asio::use_future);
  io.run();
  const HostAddresses found = answer.get();
  if (!found.failure.empty()) {
    throw Error(Errc::connection,
                fmt::format("cannot listen on {}:{}: no address for this name ({})", host, port,
                            found.failure));
  }
  std::vector<tcp::endpoint> endpoints;
  for (const asio::ip::address& address : found.addresses) {
    endpoints.emplace_back(address, port);
  }
  return endpoints;
}

/// True if the machine lacks the address family: name services return IPv6 addresses even on
/// machines without IPv6.
bool family_is_missing(int error) {
  return error == EAFNOSUPPORT || error == EADDRNOTAVAIL;
}

/// Returns a listening socket, or an empty one with errno set.
UniqueFd open(const tcp::endpoint& endpoint) {
  UniqueFd socket(
      ::socket(endpoint.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  tune_socket(socket.get());  // accepted sockets inherit the options
  // Without IPV6_V6ONLY the IPv6 wildcard would also take the IPv4 port.
  if (endpoint.address().is_v6()) {
    ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
  }
  if (!socket ||
      ::bind(socket.get(), endpoint.data(), static_cast<socklen_t>(endpoint.size())) != 0 ||
      ::listen(socket.get(), SOMAXCONN) != 0) {
    return {};
  }
  return socket;
}

tcp::endpoint tcp_endpoint(const UniqueFd& socket) {
  tcp::endpoint bound;
  auto size = static_cast<socklen_t>(bound.capacity());
  ::getsockname(socket.get(), bound.data(), &size);
  bound.resize(size);
  return bound;
}

Listener described(UniqueFd socket, const tcp::endpoint& bound) {
  return {.socket = std::move(socket),
          .address = socket_name(bound.data(), static_cast<socklen_t>(bound.size())),
          .port = bound.port(),
          .is_open = !bound.address().is_loopback(),
          .is_everywhere = bound.address().is_unspecified()};
}

/// Listens on every endpoint of every host. With port 0 the first endpoint gets a free port, and
/// the others use the same one. Returns the failure, if any.
std::optional<Failure> listen_all(const std::vector<Host>& hosts, std::uint16_t port,
                                  std::vector<Listener>& listeners) {
  for (const Host& host : hosts) {
    int last_error = 0;
    bool any = false;
    for (tcp::endpoint endpoint : host.endpoints) {
      endpoint.port(port);
      UniqueFd socket = open(endpoint);
      last_error = errno;
      if (socket) {
        const tcp::endpoint bound = tcp_endpoint(socket);
        listeners.push_back(described(std::move(socket), bound));
        port = bound.port();
        any = true;
      } else if (!family_is_missing(last_error)) {
        return Failure{host.name, last_error};
      }
    }
    if (!any) {
      return Failure{host.name, last_error};
    }
  }
  return std::nullopt;
}

/// Resolves all hosts and drops repeated endpoints: two names may have the same address.
std::vector<Host> resolve_all(const std::vector<std::string>& names, std::uint16_t port) {
  std::vector<Host> hosts;
  std::vector<tcp::endpoint> seen;
  for (const std::string& name : names) {
    Host host{name, {}};
    for (const tcp::endpoint& endpoint : resolve(name, port)) {
      if (std::ranges::find(seen, endpoint) == seen.end()) {
        seen.push_back(endpoint);
        host.endpoints.push_back(endpoint);
      }
    }
    if (!host.endpoints.empty()) {
      hosts.push_back(std::move(host));
    }
  }
  return hosts;
}

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
  return fmt::format("{} (pid {})", name.empty() ? "a process" : printable(name), owner.pid);
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
  if (status.st_uid != ::geteuid()) {
    fail(host, fmt::format("the path is a socket of user {}. Choose another path", status.st_uid));
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

/// Listens on the Unix socket `unix:/path`: see listen_on.
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
  OwnedFile file(address.sun_path);
  if (::listen(socket.get(), SOMAXCONN) != 0) {
    fail(host, errno_text());
  }
  return {.socket = std::move(socket), .address = host, .file = std::move(file)};
}

std::optional<Failure> listen_on_tcp(const std::vector<std::string>& names, std::uint16_t port,
                                     std::vector<Listener>& listeners) {
  const std::vector<Host> hosts = resolve_all(names, port);
  for (int tries = 1;; ++tries) {
    listeners.clear();
    const auto failure = listen_all(hosts, port, listeners);
    if (!failure || port != 0 || failure->error != EADDRINUSE || tries == kFreePortTries) {
      return failure;
    }
  }
}

std::optional<Failure> try_listen(const std::vector<std::string>& hosts, std::uint16_t port,
                                  std::vector<Listener>& listeners) {
  std::vector<std::string> names;
  std::ranges::remove_copy_if(hosts, std::back_inserter(names), is_unix);
  if (const auto failure = listen_on_tcp(names, port, listeners)) {
    return failure;
  }
  for (const std::string& host : hosts) {
    if (is_unix(host)) {
      listeners.push_back(listen_on_unix(host));
    }
  }
  return std::nullopt;
}

}  // namespace

OwnedFile::OwnedFile(std::filesystem::path path) : path_(std::move(path)) {
  struct stat status {};
  inode_ = ::lstat(path_.c_str(), &status) == 0 ? status.st_ino : 0;
}

OwnedFile::~OwnedFile() {
  struct stat status {};
  if (!path_.empty() && ::lstat(path_.c_str(), &status) == 0 && status.st_ino == inode_) {
    ::unlink(path_.c_str());
  }
}

std::string warning_of_open(const std::string& address) {
  return address +
         " is open: any client that reaches it can read and write every key and join every job. "
         "Restrict access with a firewall, or listen on an address of a closed network";
}

std::vector<Listener> listen_on(const std::vector<std::string>& hosts, std::uint16_t port) {
  std::vector<Listener> listeners;
  if (const auto failure = try_listen(hosts, port, listeners)) {
    fail(*failure, port);
  }
  return listeners;
}

std::optional<std::vector<Listener>> listen_unless_in_use(const std::vector<std::string>& hosts,
                                                          std::uint16_t port) {
  std::vector<Listener> listeners;
  const auto failure = try_listen(hosts, port, listeners);
  if (!failure) {
    return listeners;
  }
  if (failure->error != EADDRINUSE) {
    fail(*failure, port);
  }
  return std::nullopt;
}

Listener adopt(UniqueFd socket) {
  // Asks the kernel what the descriptor is. Failed calls leave the values at 0, which is refused.
  int listens = 0;
  int type = 0;
  sockaddr_storage bound{};
  socklen_t int_size = sizeof(int);
  socklen_t size = sizeof bound;
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ACCEPTCONN, &listens, &int_size);
  ::getsockopt(socket.get(), SOL_SOCKET, SO_TYPE, &type, &int_size);
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &size);
  const std::string name = socket_name(reinterpret_cast<const sockaddr*>(&bound), size);
  if (listens != 1 || type != SOCK_STREAM || name.empty()) {
    throw Error(Errc::config,
                fmt::format("inherited descriptor {} must be a listening socket of TCP "
                            "or Unix (LISTEN_FDS)",
                            socket.get()));
  }
  ::fcntl(socket.get(), F_SETFL, O_NONBLOCK);
  tune_socket(socket.get());
  if (bound.ss_family == AF_UNIX) {
    return {std::move(socket), name};
  }
  const tcp::endpoint endpoint = tcp_endpoint(socket);
  return described(std::move(socket), endpoint);
}

}  // namespace acc::rendezvous
