#include "output/output_sink.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

namespace acc::launcher {
namespace asio = boost::asio;

namespace {

/// O_NONBLOCK belongs to the open file that the shell and others share, so a pipe or terminal is
/// opened anew. Where that is not allowed the result is empty and writes block.
UniqueFd reopen_nonblocking(int fd) {
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  return UniqueFd(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

}  // namespace

OutputSink::OutputSink(const asio::any_io_executor& executor, int fd)
    : is_terminal_(::isatty(fd) == 1), out_(executor), progress_(executor) {
  struct stat status {};
  ::fstat(fd, &status);
  UniqueFd target;
  if (S_ISSOCK(status.st_mode)) {
    kind_ = Kind::socket;
  } else if (S_ISFIFO(status.st_mode) || S_ISCHR(status.st_mode)) {
    target = reopen_nonblocking(fd);
    kind_ = target ? Kind::polled : Kind::file;
  }
  if (!target) {
    target.reset(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  }
  closed_ = !target;  // the launcher was started without this stream
  if (target) {
    out_.assign(target.release());
  }
  progress_.expires_at(asio::steady_timer::time_point::max());
}

asio::awaitable<void> OutputSink::below(std::size_t limit) {
  while (pending_.size() - written_ >= limit) {
    co_await progress_.async_wait(asio::as_tuple(asio::use_awaitable));
  }
}

void OutputSink::write(std::string_view block) {
  if (closed_) {
    return;
  }
  pending_.append(block);
  if (!waiting_) {
    write_now();
  }
}

ssize_t OutputSink::write_some() const {
  const char* data = pending_.data() + written_;
  const std::size_t size = pending_.size() - written_;
  const int fd = const_cast<asio::posix::stream_descriptor&>(out_).native_handle();
  return kind_ == Kind::socket ? ::send(fd, data, size, MSG_DONTWAIT | MSG_NOSIGNAL)
                               : ::write(fd, data, size);
}

void OutputSink::write_now() {
  while (written_ < pending_.size()) {
    const ssize_t count = write_some();
    if (count >= 0) {
      written_ += static_cast<std::size_t>(count);
    } else if (errno == EAGAIN) {
      waiting_ = true;
      asio::co_spawn(out_.get_executor(), write_when_ready(), asio::detached);
      return;
    } else if (errno != EINTR) {
      closed_ = true;  // EPIPE, ENOSPC, EIO
      break;
    }
  }
  pending_.clear();
  written_ = 0;
}

asio::awaitable<void> OutputSink::write_when_ready() {
  co_await out_.async_wait(asio::posix::stream_descriptor::wait_write,
                           asio::as_tuple(asio::use_awaitable));
  waiting_ = false;
  pending_.erase(0, std::exchange(written_, 0));
  write_now();
  progress_.cancel();
}

}  // namespace acc::launcher
