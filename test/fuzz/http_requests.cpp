// SPDX-License-Identifier: Apache-2.0
// Fuzzes the protocol handler of HTTP clients and the answers of the API: replies must be the same
// for whole and split input, and each must be an HTTP response.
#include "acc/base/error.hpp"
#include "acc/rendezvous/board.hpp"
#include "input.hpp"
#include "server/http_session.hpp"

#include <limits>
#include <string>

namespace {

using acc::fuzz::Cuts;
using acc::fuzz::Input;
using acc::fuzz::require;
using acc::fuzz::Unread;
using acc::rendezvous::Board;
using acc::rendezvous::HttpSession;
namespace news = acc::rendezvous::news;
namespace watch = acc::rendezvous::watch;

constexpr Board::Time kNow{};

/// A job with two ranks and all kinds of values.
Board example() {
  Board board;
  board.tell(0, news::Created{.run_id = "a job"}, kNow);
  board.tell(0,
             news::Joined{
                 1, {.machine_rank = {}, .host = "h\"\xff", .address = "a", .local_world_size = 2}},
             kNow);
  acc::rendezvous::Round round;
  round.local_world_sizes = {2};
  board.tell(0, news::Formed{round, {1}}, kNow);
  acc::rendezvous::RankStatus status{.rank = 1,
                                     .state = acc::rendezvous::RankStatus::State::running};
  status.metrics.step = 3;
  status.metrics.loss = std::numeric_limits<double>::quiet_NaN();
  status.metrics.values = {{"x", std::numeric_limits<double>::infinity()}};
  status.metrics.memory = {{"y", 1}};
  board.update(0, 1, {status}, kNow);
  board.keep_report(0, "{}", kNow);
  return board;
}

struct Client {
  const Board& board;
  std::string replies{};
  bool closed = false;
  Unread unread{};
  HttpSession session{
      [this](const watch::Request& request) { return watch::answer(request, board, {}, kNow); }};

  void send(std::string_view bytes) {
    if (closed) {
      return;
    }
    try {
      unread.feed(bytes, [&](std::string_view& rest) { return session.step(rest, replies); });
    } catch (const acc::Error& error) {
      require(error.code() == acc::Errc::protocol, "bad bytes are a protocol error");
      closed = true;
    }
    require(replies.empty() || replies.starts_with("HTTP/1.1 "), "a reply is an HTTP response");
    require(!closed || replies.find("\r\n\r\n") != std::string::npos, "a refusal has a reply");
  }
};

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Board board = example();
  Input input(data, size);
  Cuts cuts(input);
  std::string_view bytes = input.rest();
  Client whole{board};
  whole.send(bytes);
  Client cut{board};
  while (!bytes.empty()) {
    cut.send(cuts.take_piece(bytes));
  }
  require(whole.replies == cut.replies, "replies do not depend on how the bytes are split");
  require(whole.closed == cut.closed,
          "the end of the connection does not depend on how the bytes are split");
  return 0;
}
