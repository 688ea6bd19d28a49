// SPDX-License-Identifier: Apache-2.0
// Baseline for the store's server: parses only where each request ends and sends prepared replies.
// It has no key table, so it measures the cost of sockets and framing alone.
//
// bare_server: prints its port and serves until its standard input is closed.
#include "loopback.hpp"
#include "wire/frames.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace {

using acc::bench::checked;
namespace wire = acc::rendezvous::wire;

/// Returns the size in bytes of the field at the start of `bytes`; nothing while it is incomplete.
std::optional<std::size_t> field_size(char field, std::string_view bytes) {
  std::size_t size = field == 'u' ? 4 : 8;
  if (field == 'k' || field == 'v') {
    if (bytes.size() < 8) {
      return std::nullopt;
    }
    size += static_cast<std::size_t>(wire::get_i64(bytes.data()));
  }
  return bytes.size() < size ? std::nullopt : std::optional(size);
}

/// Returns the size in bytes of the first frame; nothing while it is incomplete.
std::optional<std::size_t> frame_size(std::string_view bytes) {
  const wire::Shape& shape = wire::kShapes.at(static_cast<unsigned char>(bytes.front()));
  std::size_t size = 1;
  std::int64_t rounds = 1;
  if (shape.repeated) {
    if (bytes.size() < 9) {
      return std::nullopt;
    }
    rounds = wire::get_i64(bytes.data() + 1);
    size += 8;
  }
  for (; rounds > 0; --rounds) {
    for (const char field : shape.fields) {
      const auto more = field_size(field, bytes.substr(size));
      if (!more) {
        return std::nullopt;
      }
      size += *more;
    }
  }
  return size;
}

/// Returns the prepared reply of each command, except PING, whose reply is its nonce.
std::array<std::string, wire::kShapes.size()> canned_replies() {
  std::array<std::string, wire::kShapes.size()> replies;
  for (std::size_t op = 0; op < replies.size(); ++op) {
    switch (static_cast<wire::Opcode>(op)) {
      case wire::Opcode::get: wire::put_bytes(replies[op], std::string(32, 'v')); break;
      case wire::Opcode::add: wire::put_i64(replies[op], 1); break;
      case wire::Opcode::wait:
      case wire::Opcode::barrier: replies[op].push_back(wire::kReleased); break;
      default: break;
    }
  }
  return replies;
}

/// Answers requests with prepared replies.
class CannedReplies {
 public:
  /// Appends the replies to the complete requests to `replies`; leaves the rest in `bytes`.
  void answer(std::string_view& bytes, std::string& replies) const {
    while (!bytes.empty()) {
      const auto size = frame_size(bytes);
      if (!size) {
        return;
      }
      if (static_cast<wire::Opcode>(bytes.front()) == wire::Opcode::ping) {
        replies.append(bytes.substr(1, 4));
      } else {
        replies.append(canned_[static_cast<unsigned char>(bytes.front())]);
      }
      bytes.remove_prefix(*size);
    }
  }

 private:
  std::array<std::string, wire::kShapes.size()> canned_ = canned_replies();
};

/// Returns a socket that listens on a free port of 127.0.0.1, and prints the port.
acc::UniqueFd listening_socket() {
  acc::UniqueFd listener = acc::bench::new_socket();
  sockaddr_in address = acc::bench::loopback(0);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  checked(bind(listener.get(), generic, sizeof address), "bind");
  checked(listen(listener.get(), SOMAXCONN), "listen");
  socklen_t size = sizeof address;
  getsockname(listener.get(), generic, &size);
  std::printf("listening on 127.0.0.1:%d\n", ntohs(address.sin_port));
  std::fflush(stdout);
  return listener;
}

constexpr int kBatch = 256;

class BareServer {
 public:
  BareServer() : listener_(listening_socket()), epoll_(checked(epoll_create1(0), "epoll_create1")) {
    watch(listener_.get());
    watch(STDIN_FILENO);
  }

  void run() {
    std::array<epoll_event, kBatch> events{};
    while (true) {
      const int count = epoll_wait(epoll_.get(), events.data(), kBatch, -1);
      for (int i = 0; i < count; ++i) {
        const int fd = events[static_cast<std::size_t>(i)].data.fd;
        if (fd == STDIN_FILENO) {
          return;
        }
        fd == listener_.get() ? accept_all() : serve(fd);
      }
    }
  }

 private:
  void watch(int fd) const {
    epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
    checked(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
  }

  void accept_all() const {
    int fd = 0;
    while ((fd = accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK)) >= 0) {
      watch(fd);
    }
  }

  void serve(int fd) {
    const ssize_t count = recv(fd, buffer_.data(), buffer_.size(), 0);
    if (count <= 0) {
      rests_.erase(fd);
      close(fd);
      return;
    }
    std::string_view bytes(buffer_.data(), static_cast<std::size_t>(count));
    std::string whole;
    if (!rests_.empty()) {
      if (const auto rest = rests_.extract(fd)) {
        whole = rest.mapped().append(bytes);
        bytes = whole;
      }
    }
    replies_.clear();
    canned_.answer(bytes, replies_);
    if (!bytes.empty()) {
      rests_[fd] = bytes;
    }
    if (!replies_.empty() && send(fd, replies_.data(), replies_.size(), MSG_NOSIGNAL) < 0) {
      std::perror("send");
    }
  }

  acc::UniqueFd listener_;
  acc::UniqueFd epoll_;
  std::array<char, std::size_t{64} << 10> buffer_{};
  std::unordered_map<int, std::string> rests_;
  const CannedReplies canned_;
  std::string replies_;
};

}  // namespace

int main() {
  std::make_unique<BareServer>()->run();
}
