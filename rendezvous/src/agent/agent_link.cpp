// SPDX-License-Identifier: Apache-2.0
#include "agent/agent_link.hpp"

#include "acc/base/error.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <fmt/format.h>

#include <utility>

namespace acc::rendezvous {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr std::size_t kReadSize = 16 * 1024;

}  // namespace

AgentLink::AgentLink(asio::ip::tcp::socket socket, std::unique_ptr<secure::SecureLink> encryption,
                     Milliseconds silence_limit, bool comes_back, Events events)
    : socket_(std::move(socket)),
      encryption_(std::move(encryption)),
      beat_(socket_.get_executor()),
      flush_(socket_.get_executor()),
      beat_interval_(silence_limit),
      silence_limit_(silence_limit),
      comes_back_(comes_back),
      events_(std::move(events)),
      received_(kReadSize, '\0') {
  if (encryption_) {
    encryption_->start(unsent_);
  }
  queue(rounds::kHello);  // goes out with the first message
}

void AgentLink::start() {
  heard_at_ = std::chrono::steady_clock::now();
  read();
  beat();
}

void AgentLink::keep_alive(Milliseconds beat_interval, Milliseconds silence_limit,
                           bool comes_back) {
  beat_interval_ = beat_interval;
  silence_limit_ = silence_limit;
  comes_back_ = comes_back;
  beat();
}

void AgentLink::send(const rounds::AgentMessage& message) {
  if (encryption_) {
    std::string frame;
    rounds::encode(message, frame);
    queue(frame);
  } else {
    rounds::encode(message, unsent_);
  }
  write();
}

void AgentLink::queue(std::string_view bytes) {
  if (encryption_) {
    encryption_->send(bytes, unsent_);
  } else {
    unsent_ += bytes;
  }
}

void AgentLink::read() {
  socket_.async_read_some(asio::buffer(received_), [self = shared_from_this()](
                                                       const error_code& error, std::size_t count) {
    if (!self->socket_.is_open()) {
      return;  // closed while this handler was queued
    }
    if (error) {
      return self->end(error == asio::error::eof ? "the server closed it" : error.message());
    }
    self->heard_at_ = std::chrono::steady_clock::now();
    if (self->encryption_) {
      self->decrypt(count);
    } else {
      self->incoming_.append(self->received_, 0, count);
    }
    if (self->socket_.is_open()) {
      self->take_messages();
    }
    if (self->socket_.is_open()) {
      self->read();
    }
  });
}

/// Decrypts the bytes in received_. They may be a part of the handshake, which is answered.
void AgentLink::decrypt(std::size_t count) {
  try {
    encryption_->receive(std::string_view(received_).substr(0, count), incoming_, unsent_);
  } catch (const TokenRefused& refusal) {
    if (const auto on_refusal = events_.on_refusal) {
      on_refusal(refusal.what());
    }
    return end(refusal.what());
  } catch (const Error& error) {
    write();  // the alert
    if (error.code() == Errc::config || error.code() == Errc::disagreement) {
      auto on_message = events_.on_message;
      on_message(rounds::Dropped{rounds::Dropped::Why::config, error.what()});
    }
    return end(error.what());
  }
  write();
}

/// Decodes all complete messages. A handler may close the link at any message.
void AgentLink::take_messages() {
  std::string_view bytes = incoming_;
  try {
    while (auto message = rounds::take_server_message(bytes)) {
      events_.on_message(std::move(*message));
      if (!socket_.is_open()) {
        return;
      }
    }
  } catch (const Error& error) {
    return end(error.what());
  }
  incoming_.erase(0, incoming_.size() - bytes.size());
}

/// Writes the queued messages, one write at a time: messages queued meanwhile go out together
/// afterwards. Cancelling flush_ lets `flushed` complete when nothing is left to write.
void AgentLink::write() {
  if (!sending_.empty()) {
    return;
  }
  if (unsent_.empty() || !socket_.is_open()) {
    flush_.cancel();
    return;
  }
  sending_.swap(unsent_);
  asio::async_write(socket_, asio::buffer(sending_),
                    [self = shared_from_this()](const error_code& error, std::size_t) {
                      self->sending_.clear();
                      // A failed write does not end the link: messages that the server sent
                      // before it closed are still to be read, and reading reports the end.
                      if (!error) {
                        self->write();
                      }
                    });
}

/// Checks the heartbeat timeout of the server and schedules the next heartbeat to it.
void AgentLink::beat() {
  const auto silent_for = std::chrono::steady_clock::now() - heard_at_;
  if (silent_for >= silence_limit_) {
    if (comes_back_ && sending_.empty()) {
      send_away();
    }
    return end(fmt::format("no heartbeat for {:.1f} s",
                           std::chrono::duration<double>(silent_for).count()));
  }
  beat_.expires_after(beat_interval_);
  beat_.async_wait([self = shared_from_this()](const error_code& error) {
    if (!error && self->socket_.is_open()) {
      self->beat();  // first: Away cannot be sent while a write is in progress
      self->send(rounds::Beat{});
    }
  });
}

/// A server that was suspended reads this before the end of the connection. It is written at once,
/// because the link ends; if the socket's buffer is full, it is lost.
void AgentLink::send_away() {
  std::string frame;
  rounds::encode(rounds::AgentMessage(rounds::Away{}), frame);
  error_code ignored;
  std::string bytes;
  if (encryption_) {
    encryption_->send(frame, bytes);
  } else {
    bytes = frame;
  }
  socket_.non_blocking(true, ignored);
  socket_.write_some(asio::buffer(bytes), ignored);
}

asio::awaitable<void> AgentLink::flushed(Milliseconds limit) {
  const auto self = shared_from_this();
  if (!sending_.empty() && socket_.is_open()) {
    flush_.expires_after(limit);
    co_await flush_.async_wait(asio::as_tuple(asio::use_awaitable));
  }
}

void AgentLink::end(const std::string& why) {
  if (!socket_.is_open()) {
    return;
  }
  auto on_end = std::move(events_.on_end);  // it may destroy the owner of this link
  close();
  on_end(why);
}

void AgentLink::close() noexcept {
  error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
  beat_.cancel();
  flush_.cancel();
}

}  // namespace acc::rendezvous
