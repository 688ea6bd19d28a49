// SPDX-License-Identifier: Apache-2.0
#include "output/output_sink.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <utility>

namespace acc::launcher::output {
namespace asio = boost::asio;

namespace {

/// Opens a pipe or terminal again with O_NONBLOCK. The flag belongs to the open file description,
/// which the shell and other processes share, so it must not be set on `fd` itself. Empty if this
/// is not permitted, as for a pipe of another user.
UniqueFd reopen_nonblocking(int fd) {
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  return UniqueFd(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

/// Polls `fd` without waiting.
short events_of(int fd, short wanted) {
  pollfd polled{fd, wanted, 0};
  return ::poll(&polled, 1, 0) == 1 ? polled.revents : short{0};
}

/// True if a process group other than `group` has the terminal.
bool is_background(pid_t group, int terminal) {
  const pid_t foreground = ::tcgetpgrp(terminal);  // -1: not our controlling terminal
  return group != 0 && foreground != -1 && foreground != group;
}

/// Truncates `text` to one column less than the terminal's width, so that it never wraps.
std::string cut_to_width(const std::string& text, int terminal) {
  winsize size{};
  const bool known = ::ioctl(terminal, TIOCGWINSZ, &size) == 0 && size.ws_col != 0;
  return text.substr(0, known ? size.ws_col - 1U : 79U);
}

}  // namespace

OutputSink::OutputSink(const asio::any_io_executor& executor, int fd, OnLost on_lost)
    : is_terminal_(::isatty(fd) == 1),
      on_lost_(std::move(on_lost)),
      out_(executor),
      progress_(executor, asio::steady_timer::time_point::max()) {
  open(fd);
}

// Regular files and block devices stay `file`: they are always writable, so blocking is acceptable.
void OutputSink::open(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) {
    is_lost_ = true;
    return;
  }
  UniqueFd target;
  if (S_ISSOCK(status.st_mode)) {
    kind_ = Kind::socket;
  } else if (S_ISFIFO(status.st_mode) || S_ISCHR(status.st_mode)) {
    target = reopen_nonblocking(fd);
    kind_ = target ? Kind::polled : Kind::shared;
  }
  if (!target) {
    target.reset(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  }
  out_.assign(target.release());
}

void OutputSink::watch() {
  if (is_lost_) {
    return;
  }
  const int fd = out_.native_handle();
  const int flags = ::fcntl(fd, F_GETFL);
  // epoll reports an error condition when the last reader of a pipe closes it.
  out_.async_wait(asio::posix::stream_descriptor::wait_error,
                  [self = shared_from_this()](const boost::system::error_code& error) {
                    if (!error) {
                      self->look_for_reader();
                    }
                  });
  ::fcntl(fd, F_SETFL, flags);  // async_wait has set O_NONBLOCK, which other processes share
}

void OutputSink::look_for_reader() {
  if (out_.is_open() && (events_of(out_.native_handle(), 0) & (POLLERR | POLLHUP)) != 0) {
    lose(is_terminal_ ? EIO : EPIPE);
  }
}

asio::awaitable<void> OutputSink::below(std::size_t limit) {
  const auto self = shared_from_this();
  while (pending_.size() - written_ >= limit) {
    co_await progress_.async_wait(asio::as_tuple(asio::use_awaitable));
  }
}

void OutputSink::write(std::string_view block) {
  if (is_lost_ || block.empty()) {
    return;
  }
  if (is_terminal_) {
    put(status_.around(block));
  } else {
    put(block);
  }
}

void OutputSink::put(std::string_view bytes) {
  if (!pending_.empty()) {  // `write_when_ready` is running and keeps the order
    pending_.append(bytes);
    return;
  }
  bytes.remove_prefix(write_now(bytes));
  if (!bytes.empty()) {
    pending_.assign(bytes);
    asio::co_spawn(out_.get_executor(), write_when_ready(), asio::detached);
  }
}

void OutputSink::show_status(const std::string& text, pid_t group) {
  if (is_lost_) {
    return;
  }
  const int terminal = out_.native_handle();
  status_.set(is_background(group, terminal) ? "" : cut_to_width(text, terminal));
  put(status_.around(""));
}

ssize_t OutputSink::write_some(std::string_view bytes) {
  const int fd = out_.native_handle();
  if (kind_ == Kind::socket) {
    return ::send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  // If poll() reports a blocking pipe as writable, a write of PIPE_BUF bytes does not block.
  if (kind_ == Kind::shared) {
    if (events_of(fd, POLLOUT) == 0) {
      errno = EAGAIN;
      return -1;
    }
    bytes = bytes.substr(0, PIPE_BUF);
  }
  return ::write(fd, bytes.data(), bytes.size());
}

/// Writes as much as possible without blocking. Returns the number of bytes that are done: written,
/// or dropped after an error.
std::size_t OutputSink::write_now(std::string_view bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = write_some(bytes.substr(done));
    if (count >= 0) {
      done += static_cast<std::size_t>(count);
    } else if (errno == EAGAIN) {
      return done;
    } else if (errno != EINTR) {
      lose(errno);
      return bytes.size();
    }
  }
  return done;
}

asio::awaitable<void> OutputSink::write_when_ready() {
  const auto self = shared_from_this();
  while (!pending_.empty()) {
    co_await out_.async_wait(asio::posix::stream_descriptor::wait_write,
                             asio::as_tuple(asio::use_awaitable));
    written_ += write_now(std::string_view(pending_).substr(written_));
    if (written_ >= pending_.size() || written_ >= kEnough) {
      pending_.erase(0, std::exchange(written_, 0));
    }
    progress_.cancel();
  }
}

void OutputSink::lose(int error) {
  if (!std::exchange(is_lost_, true)) {
    is_closed_ = error == EPIPE;
    on_lost_(error);
  }
}

void OutputSink::stop_watching() {
  boost::system::error_code ignored;
  out_.cancel(ignored);
}

void OutputSink::close() {
  is_lost_ = true;
  boost::system::error_code ignored;
  out_.close(ignored);
}

}  // namespace acc::launcher::output
