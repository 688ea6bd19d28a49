#include "socket_stream.hpp"

#include "acc/base/error.hpp"
#include "tune_socket.hpp"

#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <memory>

namespace acc::rendezvous {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

[[noreturn]] void gone(int error) {
  throw Error(Errc::connection, fmt::format("{} (errno {})", std::strerror(error), error));
}

[[noreturn]] void late() {
  throw Error(Errc::timeout, "no answer in time");
}

Addresses resolve(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    throw Error(Errc::connection, gai_strerror(error));
  }
  return {found, &freeaddrinfo};
}

}  // namespace

SocketStream::SocketStream(const std::string& host, std::uint16_t port, TimePoint deadline) {
  const Addresses addresses = resolve(host, port);
  int error = EHOSTUNREACH;
  for (const addrinfo* each = addresses.get(); each != nullptr; each = each->ai_next) {
    fd_.reset(socket(each->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd_) {
      error = errno;
      continue;
    }
    if (connect(fd_.get(), each->ai_addr, each->ai_addrlen) != 0 && errno != EINPROGRESS) {
      error = errno;
      continue;
    }
    if (!ready(POLLOUT, deadline)) {
      late();
    }
    socklen_t size = sizeof error;
    getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error == 0) {
      tune_socket(fd_.get());
      return;
    }
  }
  fd_.reset();
  gone(error);
}

bool SocketStream::ready(short events, TimePoint deadline) const {
  using std::chrono::milliseconds;
  pollfd poll_fd{fd_.get(), events, 0};
  while (true) {
    const auto left =
        std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    const auto wait = std::clamp<decltype(left)>(left, 0, std::numeric_limits<int>::max());
    const int count = poll(&poll_fd, 1, static_cast<int>(wait));
    if (count > 0) {
      return true;
    }
    if (count < 0 && errno != EINTR) {
      gone(errno);
    }
    if (count == 0 && left <= wait) {
      return false;
    }
  }
}

bool SocketStream::readable(TimePoint deadline) const {
  return ready(POLLIN, deadline);
}

void SocketStream::write(std::string_view bytes, TimePoint deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      if (!ready(POLLOUT, deadline)) {
        late();
      }
    } else if (errno != EINTR) {
      gone(errno);
    }
  }
}

void SocketStream::read(char* bytes, std::size_t count, TimePoint deadline) {
  while (count > 0) {
    const ssize_t received = recv(fd_.get(), bytes, count, 0);
    if (received > 0) {
      bytes += received;
      count -= static_cast<std::size_t>(received);
    } else if (received == 0) {
      throw Error(Errc::connection, "the server closed the connection");
    } else if (errno == EAGAIN) {
      if (!ready(POLLIN, deadline)) {
        late();
      }
    } else if (errno != EINTR) {
      gone(errno);
    }
  }
}

}  // namespace acc::rendezvous
