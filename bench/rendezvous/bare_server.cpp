// SPDX-License-Identifier: Apache-2.0
// Baseline for the store's server: parses only where each request ends and sends prepared replies.
// It has no key table, so it measures the cost of sockets and framing alone.
//
// bare_server: prints its port and serves until its standard input is closed.
#include "canned_replies.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

namespace {

using acc::bench::checked;

constexpr int kBatch = 256;

class BareServer {
 public:
  BareServer()
      : listener_(acc::bench::listening_socket()),
        epoll_(checked(epoll_create1(0), "epoll_create1")) {
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
  const acc::bench::CannedReplies canned_;
  std::string replies_;
};

}  // namespace

int main() {
  std::make_unique<BareServer>()->run();
}
