#include "listen.hpp"

#include "acc/base/error.hpp"
#include "tune_socket.hpp"

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace acc::rendezvous {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Endpoint = asio::generic::stream_protocol::endpoint;

constexpr std::string_view kUnix = "unix:";

// A free port of the first address may be taken on the second; try another one this often.
constexpr int kFreePortTries = 16;

std::string name_of(const Address& address) {
  if (address.host.starts_with(kUnix)) {
    return address.host;
  }
  const bool is_v6 = address.host.find(':') != std::string::npos;
  return is_v6 ? fmt::format("[{}]:{}", address.host, address.port)
               : fmt::format("{}:{}", address.host, address.port);
}

[[noreturn]] void fail(const Address& address, int error) {
  std::string message = fmt::format("cannot listen on {}: {} (errno {})", name_of(address),
                                    std::strerror(error), error);
  if (error == EADDRINUSE && address.port != 0) {
    const auto owner = Server::port_owner(address.port);
    message +=
        fmt::format("; {} listens there. Choose another port", owner.value_or("another socket"));
  } else if (error == EADDRINUSE) {
    message += "; another process listens there. Choose another path";
  }
  throw Error(Errc::connection, message);
}

Endpoint endpoint_of(const Address& address) {
  if (address.host.starts_with(kUnix)) {
    const std::string path = address.host.substr(kUnix.size());
    if (path.empty() || path.size() >= sizeof(sockaddr_un::sun_path)) {
      throw Error(Errc::invalid_argument,
                  fmt::format("a Unix socket's path has 1 to {} bytes, '{}' has {}",
                              sizeof(sockaddr_un::sun_path) - 1, path, path.size()));
    }
    return asio::local::stream_protocol::endpoint(path);
  }
  error_code error;
  const auto ip = asio::ip::make_address(address.host, error);
  if (error) {
    throw Error(Errc::invalid_argument,
                fmt::format("'{}' is no address to listen on: expected IPv4, IPv6 or unix:PATH",
                            address.host));
  }
  return tcp::endpoint(ip, address.port);
}

/// A socket that nobody listens on any more is in the way only.
bool remove_stale(const std::string& path, const Endpoint& endpoint) {
  struct stat found {};
  if (lstat(path.c_str(), &found) != 0 || !S_ISSOCK(found.st_mode)) {
    return false;
  }
  const UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return connect(probe.get(), endpoint.data(), static_cast<socklen_t>(endpoint.size())) != 0 &&
         errno == ECONNREFUSED && unlink(path.c_str()) == 0;
}

std::uint16_t port_of(int fd) {
  tcp::endpoint bound;
  auto size = static_cast<socklen_t>(bound.capacity());
  getsockname(fd, bound.data(), &size);
  return bound.port();
}

/// 0, or errno.
int bind_to(int fd, const Endpoint& endpoint, const std::string& path) {
  const auto attempt = [&] {
    const auto size = static_cast<socklen_t>(endpoint.size());
    return bind(fd, endpoint.data(), size) == 0 ? 0 : errno;
  };
  const int error = attempt();
  return error == EADDRINUSE && !path.empty() && remove_stale(path, endpoint) ? attempt() : error;
}

/// As above.
int open(const Address& address, ListeningSocket& made) {
  const Endpoint endpoint = endpoint_of(address);
  const int family = endpoint.protocol().family();
  made.fd.reset(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!made.fd) {
    return errno;
  }
  const int fd = made.fd.get();
  const int on = 1;
  if (family != AF_UNIX) {
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    tune_socket(fd);
  }
  if (family == AF_INET6) {
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
  }
  const std::string path = family == AF_UNIX ? address.host.substr(kUnix.size()) : "";
  if (const int error = bind_to(fd, endpoint, path); error != 0) {
    return error;
  }
  made.path = path;
  made.port = family == AF_UNIX ? std::uint16_t{0} : port_of(fd);
  return listen(fd, SOMAXCONN) == 0 ? 0 : errno;
}

/// A machine without IPv6 still resolves names to IPv6 addresses.
bool family_is_missing(const Address& address, int error) {
  const bool is_v6 = address.host.find(':') != std::string::npos;
  return error == EAFNOSUPPORT || (error == EADDRNOTAVAIL && is_v6);
}

struct Failure {
  Address address;
  int error = 0;
};

/// All that can be bound; those with port 0 share a free one. Nothing where one fails.
std::vector<ListeningSocket> open_all(const std::vector<Address>& addresses, Failure& failure) {
  std::vector<ListeningSocket> sockets;
  std::uint16_t free_port = 0;
  for (Address address : addresses) {
    address.port = address.port == 0 ? free_port : address.port;
    ListeningSocket made;
    const int error = open(address, made);
    if (error == 0) {
      free_port = free_port == 0 ? made.port : free_port;
      sockets.push_back(std::move(made));
      continue;
    }
    failure = {address, error};
    if (!family_is_missing(address, error)) {
      return {};
    }
  }
  return sockets;
}

}  // namespace

std::vector<ListeningSocket> listen_on(const std::vector<Address>& addresses) {
  if (addresses.empty()) {
    throw Error(Errc::invalid_argument, "a server needs an address to listen on");
  }
  Failure failure;
  for (int attempt = 0; attempt < kFreePortTries; ++attempt) {
    std::vector<ListeningSocket> sockets = open_all(addresses, failure);
    if (!sockets.empty()) {
      return sockets;
    }
    if (addresses.front().port != 0) {
      break;
    }
  }
  fail(failure.address, failure.error);
}

std::vector<Address> Server::resolve(const std::string& host, std::uint16_t port) {
  if (host.empty()) {
    return {{"0.0.0.0", port}, {"::", port}};
  }
  if (host.starts_with(kUnix)) {
    return {{host, 0}};
  }
  asio::io_context io;
  error_code error;
  const auto found = tcp::resolver(io).resolve(host, std::to_string(port), error);
  if (error) {
    throw Error(Errc::connection,
                fmt::format("cannot listen on {}:{}: no address for this name ({})", host, port,
                            error.message()));
  }
  std::vector<Address> addresses;
  for (const auto& entry : found) {
    addresses.push_back({entry.endpoint().address().to_string(), port});
  }
  return addresses;
}

bool Server::is_own_address(const std::string& host) {
  if (host.empty()) {
    return true;
  }
  try {
    return std::ranges::any_of(resolve(host, 0), [](const Address& address) {
      const Endpoint endpoint = endpoint_of(address);
      const UniqueFd probe(socket(endpoint.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
      return bind(probe.get(), endpoint.data(), static_cast<socklen_t>(endpoint.size())) == 0;
    });
  } catch (const Error&) {
    return false;
  }
}

}  // namespace acc::rendezvous
