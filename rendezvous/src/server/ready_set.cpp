// SPDX-License-Identifier: Apache-2.0
#include "server/ready_set.hpp"

#include "acc/base/error.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

namespace acc::rendezvous {
namespace {

/// Returns `result`; throws Error(connection) with errno if it is negative.
int checked(int result, const char* what) {
  if (result < 0) {
    throw Error(Errc::connection, fmt::format("cannot wait for sockets: {}: {} (errno {})", what,
                                              std::strerror(errno), errno));
  }
  return result;
}

std::span<const epoll_event> ready_in(int set, std::span<epoll_event> events) {
  const int count = epoll_wait(set, events.data(), static_cast<int>(events.size()), 0);
  return events.first(count < 0 ? 0 : static_cast<std::size_t>(count));
}

}  // namespace

ReadySet::ReadySet(boost::asio::io_context& io)
    : set_(io, checked(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      urgent_(checked(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")) {
  epoll_event event{.events = EPOLLIN, .data = {.ptr = nullptr}};
  checked(epoll_ctl(set_.native_handle(), EPOLL_CTL_ADD, urgent_.get(), &event), "epoll_ctl");
}

void ReadySet::add(int fd, std::uint32_t events, Watcher& watcher, Part part) {
  epoll_event event{.events = events, .data = {.ptr = &watcher}};
  checked(epoll_ctl(set_of(part), EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
  num_urgent_ += part == Part::urgent ? 1 : 0;
}

void ReadySet::change(int fd, std::uint32_t events, Watcher& watcher, Part part) {
  epoll_event event{.events = events, .data = {.ptr = &watcher}};
  epoll_ctl(set_of(part), EPOLL_CTL_MOD, fd, &event);  // cannot fail for a member
}

void ReadySet::remove(int fd, Part part) {
  epoll_ctl(set_of(part), EPOLL_CTL_DEL, fd, nullptr);
  num_urgent_ -= part == Part::urgent ? 1 : 0;
}

std::span<const epoll_event> ReadySet::take() {
  return ready_in(set_.native_handle(), events_);
}

std::span<const epoll_event> ReadySet::take_urgent() {
  return num_urgent_ > 0 ? ready_in(urgent_.get(), urgent_events_) : std::span<const epoll_event>();
}

void ReadySet::close() {
  boost::system::error_code ignored;
  set_.close(ignored);
}

}  // namespace acc::rendezvous
