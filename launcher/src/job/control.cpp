// SPDX-License-Identifier: Apache-2.0
// Receiver of control messages from the acclaunch that started this launcher. They arrive as lines
// on standard input. The connection counts as broken at the end of the input, after an invalid
// line, and after kSilenceLimit without a line (the sender sends a heartbeat every second). A
// broken connection ends the job on this machine, because no message could end it later.
#include "job/control.hpp"

#include "acc/base/error.hpp"
#include "acc/base/seconds_text.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <utility>

namespace acc::launcher::job {
namespace asio = boost::asio;

namespace {

/// True if `fd` has data, or its end, to read.
bool has_something_to_read(int fd) {
  pollfd polled{fd, POLLIN, 0};
  return ::poll(&polled, 1, 0) == 1;
}

}  // namespace

UniqueFd take_standard_input() {
  UniqueFd input(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!input || !nothing || ::dup2(nothing.get(), STDIN_FILENO) < 0) {
    throw Error(Errc::process,
                std::string("cannot take over standard input: ") + std::strerror(errno));
  }
  return input;
}

Control::Control(const asio::any_io_executor& executor, UniqueFd input, Events events,
                 std::chrono::milliseconds silence_limit)
    : input_(executor),
      silence_(executor),
      silence_limit_(silence_limit),
      events_(std::move(events)) {
  boost::system::error_code error;
  const int fd = input.release();
  input_.assign(fd, error);
  if (error) {
    ::close(fd);
  }
  wait_for_silence();
  asio::co_spawn(executor, listen(), asio::detached);
}

std::string Control::broken_connection() const {
  return "the connection to the launcher that started this one" +
         (host_.empty() ? "" : " (" + host_ + ")") + " is broken";
}

asio::awaitable<void> Control::listen() {
  if (!input_.is_open()) {  // Asio does not accept the descriptor
    is_broken("standard input is not a pipe, socket or terminal");
  }
  while (input_.is_open()) {
    const int flags = ::fcntl(input_.native_handle(), F_GETFL);
    co_await input_.async_wait(asio::posix::stream_descriptor::wait_read,
                               asio::as_tuple(asio::use_awaitable));
    if (!input_.is_open()) {
      co_return;
    }
    // Asio sets O_NONBLOCK. Standard output may share the open file description, for example a
    // socket of sshd, and must stay blocking. So the flags are restored.
    ::fcntl(input_.native_handle(), F_SETFL, flags);
    if (!read_once()) {
      co_return;
    }
  }
}

/// Reads once and handles complete lines. False after the end of the connection.
bool Control::read_once() {
  std::array<char, remote_launch::control::kMaxLine> chunk{};
  const ssize_t count = ::read(input_.native_handle(), chunk.data(), chunk.size());
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
    return true;
  }
  if (count <= 0) {
    return is_broken(count == 0 ? "" : std::strerror(errno));
  }
  pending_.append(chunk.data(), static_cast<std::size_t>(count));
  return take_lines();
}

bool Control::take_lines() {
  std::size_t begin = 0;
  for (std::size_t end = 0; (end = pending_.find('\n', begin)) != std::string::npos;) {
    if (!take(std::string_view(pending_).substr(begin, end - begin))) {
      return false;
    }
    begin = end + 1;
  }
  pending_.erase(0, begin);
  return pending_.size() < remote_launch::control::kMaxLine ||
         is_broken("received a line of more than " +
                   std::to_string(remote_launch::control::kMaxLine) + " bytes");
}

/// Handles one line. False after the end of the connection.
bool Control::take(std::string_view line) {
  const auto message = remote_launch::control::decode(line);
  if (!message) {
    return is_broken("received '" + std::string(line.substr(0, 40)) +
                     "', which is not a control message");
  }
  wait_for_silence();
  if (const auto* greeting = std::get_if<remote_launch::control::Greeting>(&*message)) {
    host_ = greeting->host;
  } else if (!std::holds_alternative<remote_launch::control::Beat>(*message)) {
    const auto* signal = std::get_if<remote_launch::control::Signal>(&*message);
    if (signal != nullptr && signal->number == SIGTSTP) {
      silence_.cancel();  // a stopped sender sends no heartbeats
    }
    events_.on_message(*message);
  }
  return input_.is_open();
}

/// Closes the connection and reports it. Returns false, for use as a result.
bool Control::is_broken(const std::string& how) {
  close();
  events_.on_broken(broken_connection() + (how.empty() ? "" : ": " + how));
  return false;
}

void Control::wait_for_silence() {
  silence_.expires_after(silence_limit_);
  silence_.async_wait([this](const boost::system::error_code& error) {
    if (error || !input_.is_open() || silence_.expiry() > std::chrono::steady_clock::now()) {
      return;  // canceled, or a line has arrived and moved the limit
    }
    // Unread input means that this process itself was suspended: that time does not count.
    if (has_something_to_read(input_.native_handle())) {
      wait_for_silence();
    } else {
      is_broken("no heartbeat for " + seconds_text(silence_limit_) + " (timeout)");
    }
  });
}

void Control::close() {
  boost::system::error_code ignored;
  input_.close(ignored);
  silence_.cancel();
}

}  // namespace acc::launcher::job
