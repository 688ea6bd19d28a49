// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/basic_stream_descriptor.hpp>
#include <boost/asio/posix/descriptor_base.hpp>
#include <sys/epoll.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace acc::rendezvous {

/// Reports which of many sockets are ready, one batch per wake-up of the event loop. It is a
/// separate epoll set, which the loop watches as a single descriptor. Registering each socket with
/// Asio would cost an additional system call per wait and socket.
///
/// Urgent sockets are in a set within this set, so that they can be asked for alone.
class ReadySet {
 public:
  class Watcher {
   public:
    /// `events` are EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP. An event of the current batch may still
    /// arrive after `remove`, so the watcher must live until the end of the turn.
    virtual void ready(std::uint32_t events) = 0;

   protected:
    ~Watcher() = default;
  };

  /// Throws Error(connection).
  explicit ReadySet(boost::asio::io_context& io);

  enum class Part : std::uint8_t { ordinary, urgent };

  /// Adds a descriptor (level-triggered). Throws Error(connection).
  void add(int fd, std::uint32_t events, Watcher& watcher, Part part = Part::ordinary);
  /// Changes the events of a descriptor that has been added to this part.
  void change(int fd, std::uint32_t events, Watcher& watcher, Part part = Part::ordinary);
  /// Removes a descriptor. Must be called before close(2): epoll keeps a descriptor as long as its
  /// open file exists, and a process forked in between may hold a copy.
  void remove(int fd, Part part = Part::ordinary);

  /// Calls `handler(error)` when something is ready.
  template <typename Handler>
  void async_wait(Handler&& handler) {
    set_.async_wait(boost::asio::posix::descriptor_base::wait_read, std::forward<Handler>(handler));
  }
  /// Returns the events that are ready now, at most one batch. Valid until the next call.
  std::span<const epoll_event> take();
  /// The same for the urgent descriptors.
  std::span<const epoll_event> take_urgent();
  /// Returns null if the event says that urgent descriptors are ready.
  static Watcher* watcher(const epoll_event& event) {
    return static_cast<Watcher*>(event.data.ptr);
  }
  void close();

 private:
  [[nodiscard]] int set_of(Part part) {
    return part == Part::urgent ? urgent_.get() : set_.native_handle();
  }

  boost::asio::posix::basic_stream_descriptor<boost::asio::io_context::executor_type> set_;
  UniqueFd urgent_;
  std::size_t num_urgent_ = 0;  // without any, no system call is needed to ask
  std::array<epoll_event, 64> events_{};
  std::array<epoll_event, 64> urgent_events_{};
};

}  // namespace acc::rendezvous
