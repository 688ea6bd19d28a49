#include "connection.hpp"

#include "acc/base/log.hpp"
#include "socket_name.hpp"
#include "tune_socket.hpp"

#include <boost/asio/write.hpp>

#include <exception>
#include <utility>

namespace acc::rendezvous {

namespace asio = boost::asio;
using boost::system::error_code;

Connection::Connection(Socket socket, Id id, std::span<char> scratch, const ServerOptions& options,
                       Open open, Closed closed)
    : closed_(std::move(closed)),
      open_(std::move(open)),
      socket_(std::move(socket)),
      limit_(socket_.get_executor()),
      id_(id),
      scratch_(scratch),
      options_(options) {}

void Connection::start() {
  error_code ignored;
  if (const auto remote = socket_.remote_endpoint(ignored); !ignored) {
    peer_ = socket_name(remote.data(), static_cast<socklen_t>(remote.size()));
  }
  tune_socket(socket_.native_handle());
  socket_.non_blocking(true, ignored);
  close_after(options_.handshake_timeout);
  read();
}

void Connection::close_after(std::chrono::milliseconds limit) {
  limit_.expires_after(limit);
  limit_.async_wait([self = shared_from_this()](const error_code& error) {
    if (!error) {
      logger("rendezvous")->debug("closing {}: time limit", self->peer_);
      self->close();
    }
  });
}

void Connection::read() {
  socket_.async_wait(Socket::wait_read, [self = shared_from_this()](const error_code& error) {
    if (error) {
      if (!self->finishing_) {
        self->close();
      }
      return;
    }
    self->receive();
  });
}

void Connection::receive() {
  if (finishing_) {
    return;
  }
  error_code error;
  const std::size_t count =
      socket_.read_some(asio::buffer(scratch_.data(), scratch_.size()), error);
  if (error == asio::error::would_block) {
    return read();
  }
  if (error) {
    return close();
  }
  if (!conversation_) {
    conversation_ = open_(id_, scratch_.front());
  }
  if (!conversation_) {
    logger("rendezvous")->debug("closing {}: neither a store client nor an agent", peer_);
    return close();
  }
  conversation_->feed({scratch_.data(), count});
  serve();
}

void Connection::serve() {
  const bool was_open = conversation_->is_open();
  try {
    while (!(paused_ = unsent_.size() + sending_.size() > options_.max_unread_bytes)) {
      if (!conversation_->step(unsent_)) {
        break;
      }
    }
  } catch (const std::exception& error) {  // a violation, or no memory for what it asks
    logger("rendezvous")->debug("closing {}: {}", peer_, error.what());
    return finish();
  }
  if (!was_open && conversation_->is_open()) {
    limit_.cancel();
  }
  write();
  if (!paused_) {
    read();
  }
}

void Connection::send(std::string_view bytes) {
  unsent_.append(bytes);
  write();
}

void Connection::write() {
  if (!sending_.empty() || unsent_.empty() || !socket_.is_open()) {
    return;
  }
  sending_.swap(unsent_);
  asio::async_write(
      socket_, asio::buffer(sending_),
      [self = shared_from_this()](const error_code& error, std::size_t) { self->written(error); });
}

void Connection::written(const error_code& error) {
  sending_.clear();
  if (error) {
    return close();
  }
  if (finishing_ && unsent_.empty()) {
    return close();
  }
  if (paused_ && !finishing_) {
    return serve();
  }
  write();
}

void Connection::finish() {
  if (std::exchange(finishing_, true)) {
    return;
  }
  if (unsent_.empty() && sending_.empty()) {
    return close();
  }
  close_after(options_.stop_timeout);
  write();
}

void Connection::close() {
  if (!socket_.is_open()) {
    return;
  }
  error_code ignored;
  limit_.cancel();
  socket_.shutdown(Socket::shutdown_both, ignored);
  socket_.close(ignored);
  closed_(id_);
}

}  // namespace acc::rendezvous
