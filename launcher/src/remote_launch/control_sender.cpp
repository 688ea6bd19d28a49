// SPDX-License-Identifier: Apache-2.0
#include "remote_launch/control_sender.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include <utility>

namespace acc::launcher::remote_launch {
namespace asio = boost::asio;

ControlSender::ControlSender(const asio::any_io_executor& executor, UniqueFd pipe)
    : pipe_(executor, pipe.release()) {}

// One coroutine at a time writes. It holds a shared_ptr to this object, which may otherwise be
// destroyed during the write.
void ControlSender::send(std::string_view bytes) {
  if (!pipe_.is_open() || bytes.empty()) {
    return;
  }
  pending_.append(bytes);
  if (!std::exchange(writes_, true)) {
    asio::co_spawn(
        pipe_.get_executor(), [self = shared_from_this()] { return self->write(); },
        asio::detached);
  }
}

asio::awaitable<void> ControlSender::write() {
  while (!pending_.empty()) {
    const std::string chunk = std::exchange(pending_, std::string());
    const auto [error, count] =
        co_await asio::async_write(pipe_, asio::buffer(chunk), asio::as_tuple(asio::use_awaitable));
    if (error || count != chunk.size()) {
      close();
    }
  }
  writes_ = false;
}

void ControlSender::close() {
  boost::system::error_code ignored;
  pipe_.close(ignored);
  pending_.clear();
}

}  // namespace acc::launcher::remote_launch
