// SPDX-License-Identifier: Apache-2.0
#include "net/socket_stream.hpp"

#include "acc/base/error.hpp"
#include "net/connect_socket.hpp"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace acc::rendezvous {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{16} << 10;

[[noreturn]] void gone(int error) {
  throw Error(Errc::connection, fmt::format("{} (errno {})", std::strerror(error), error));
}

}  // namespace

void SocketStream::connect(const std::string& host, std::uint16_t port, TimePoint deadline) {
  open(connect_socket(resolve(host, port, deadline, poll_), deadline, poll_));
}

void SocketStream::open(UniqueFd fd) noexcept {
  fd_ = std::move(fd);
  begin_ = end_ = 0;
}

short SocketStream::ready(short events, TimePoint deadline) const {
  pollfd fd{fd_.get(), events, 0};
  if (!poll_.wait({&fd, 1}, deadline)) {
    throw Error(Errc::timeout, "timeout: no answer");
  }
  return fd.revents;
}

bool SocketStream::readable(TimePoint deadline) const {
  pollfd fd{fd_.get(), POLLIN, 0};
  return begin_ < end_ || poll_.wait({&fd, 1}, deadline);
}

void SocketStream::write(std::string_view bytes, TimePoint deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      if ((ready(POLLIN | POLLOUT, deadline) & POLLIN) != 0) {
        fill_buffer();
      }
    } else if (errno != EINTR) {
      gone(errno);
    }
  }
}

std::size_t SocketStream::read_some(char* bytes, std::size_t room, TimePoint deadline) {
  if (const std::size_t kept = take(bytes, room); kept > 0) {
    return kept;
  }
  while (true) {
    if (const auto got = receive_now(bytes, room)) {
      return *got;
    }
    ready(POLLIN, deadline);
  }
}

void SocketStream::read(char* bytes, std::size_t count, TimePoint deadline) {
  std::size_t got = take(bytes, count);
  while (got < count) {
    // Large values are received in place, small ones through the buffer, which saves system calls.
    const std::size_t left = count - got;
    std::size_t more = 0;
    if (left >= kBufferBytes) {
      more = receive(bytes + got, left);
    } else {
      fill_buffer();
      more = take(bytes + got, left);
    }
    if (more == 0) {
      ready(POLLIN, deadline);
    }
    got += more;
  }
}

/// Receives what is available now. Returns the number of bytes, 0 at the end of the connection;
/// nothing if there are none yet.
std::optional<std::size_t> SocketStream::receive_now(char* bytes, std::size_t room) {
  const ssize_t count = recv(fd_.get(), bytes, room, 0);
  if (count >= 0) {
    return static_cast<std::size_t>(count);
  }
  if (errno != EAGAIN && errno != EINTR) {
    gone(errno);
  }
  return std::nullopt;
}

/// Receives what is available now. Returns the number of bytes, 0 if there are none yet.
std::size_t SocketStream::receive(char* bytes, std::size_t room) {
  const auto count = receive_now(bytes, room);
  if (count == std::size_t{0}) {
    throw Error(Errc::connection, "the server closed the connection");
  }
  return count.value_or(0);
}

/// Receives into the buffer. It grows only while `write` has to keep more than was read.
void SocketStream::fill_buffer() {
  if (buffer_.size() - end_ < kBufferBytes) {
    buffer_.resize(std::max(kBufferBytes, 2 * buffer_.size()));
  }
  end_ += receive(buffer_.data() + end_, buffer_.size() - end_);
}

/// Moves up to `count` buffered bytes to `bytes`; returns their number.
std::size_t SocketStream::take(char* bytes, std::size_t count) noexcept {
  const std::size_t taken = std::min(count, end_ - begin_);
  std::copy_n(buffer_.data() + begin_, taken, bytes);
  begin_ += taken;
  if (begin_ == end_) {
    begin_ = end_ = 0;
  }
  return taken;
}

}  // namespace acc::rendezvous
