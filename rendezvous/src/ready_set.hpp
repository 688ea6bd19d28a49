#pragma once

#include "acc/base/unique_fd.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/basic_stream_descriptor.hpp>
#include <boost/asio/posix/descriptor_base.hpp>
#include <sys/epoll.h>

#include <array>
#include <cstdint>
#include <span>
#include <utility>

namespace acc::rendezvous {

/// Tells which of many sockets are ready, a batch for each wake-up of the loop: an epoll set of its
/// own, which the loop awaits as one descriptor. (Asio itself asks the kernel once more for every
/// wait on every socket.)
class ReadySet {
 public:
  class Watcher {
   public:
    /// `events`: EPOLLIN and the like. May come once more after `remove`, in the same batch.
    virtual void ready(std::uint32_t events) = 0;

   protected:
    ~Watcher() = default;
  };

  /// Throws Error(connection).
  explicit ReadySet(boost::asio::io_context& io);

  /// Throws Error(connection).
  void add(int fd, std::uint32_t events, Watcher& watcher);
  void change(int fd, std::uint32_t events, Watcher& watcher);
  /// Before the descriptor is closed: a process forked in this moment would keep it in the set.
  void remove(int fd);

  /// Calls `handler(error)` when something is ready.
  template <typename Handler>
  void async_wait(Handler&& handler) {
    set_.async_wait(boost::asio::posix::descriptor_base::wait_read, std::forward<Handler>(handler));
  }
  /// What is ready now; the first of it, if it is much.
  std::span<const epoll_event> take();
  static Watcher& watcher(const epoll_event& event) {
    return *static_cast<Watcher*>(event.data.ptr);
  }
  void close();

 private:
  boost::asio::posix::basic_stream_descriptor<boost::asio::io_context::executor_type> set_;
  std::array<epoll_event, 256> events_{};
};

}  // namespace acc::rendezvous
