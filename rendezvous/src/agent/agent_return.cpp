// SPDX-License-Identifier: Apache-2.0
#include "agent/agent_impl.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <algorithm>

// The way back to a server that recovers: while the workers of the round go on, the agent connects
// again, says which round it is in, and repeats what the server may not have received.
namespace acc::rendezvous {

namespace asio = boost::asio;
using std::chrono::steady_clock;

/// Connects until the server has welcomed this agent, or until Return::give_up_at.
asio::awaitable<void> Agent::Impl::come_back(std::shared_ptr<Return> coming_back) {
  // A later loss of a connection may start another coroutine while this one waits in `dial`.
  const auto goes_on = [&] { return round_ && round_->coming_back == coming_back; };
  lines_.say(fmt::format(
      "the connection to the rendezvous at {} is lost ({}): the workers go on, connecting again",
      servers_.where(), connection_.why()));
  // Begins at the next address, if there is one: a server that is suspended accepts connections,
  // and the time that it takes to find this out is missing before the new one gives this machine
  // up.
  servers_.begin_again();
  servers_.try_next();
  Backoff backoff;
  while (goes_on()) {
    const auto left =
        std::chrono::ceil<Milliseconds>(coming_back->give_up_at - steady_clock::now());
    if (left <= Milliseconds(0)) {
      co_return give_up(connection_.why());
    }
    asio::ip::tcp::socket socket(executor_);
    const std::string failure =
        co_await connect(socket, std::min(left, servers_.attempt_timeout()));
    if (goes_on() && failure.empty()) {
      rounds::Enter enter = enter_;
      enter.machine = introduced_;
      enter.round = round_->round.round;
      begin_connection(std::move(socket), servers_.attempt_timeout(), std::move(enter));
      round_->repeat(connection_, end_.has_value());
    }
    while (goes_on() && connection_ && !connection_.is_admitted()) {
      coming_back->entered.close();
      co_await coming_back->entered.passed();
    }
    if (goes_on() && connection_) {
      round_->coming_back.reset();
      lines_.say(fmt::format("connected to the rendezvous at {} again", servers_.where()));
      co_return;
    }
    if (goes_on() && !servers_.try_next()) {
      coming_back->pause.expires_at(std::min<steady_clock::time_point>(
          steady_clock::now() + backoff.next(), coming_back->give_up_at));
      co_await coming_back->pause.async_wait(asio::as_tuple(asio::use_awaitable));
    }
  }
}

/// Ends `come_back`, at its next step.
void Agent::Impl::stop_coming_back() {
  if (is_coming_back()) {
    const auto coming_back = std::exchange(round_->coming_back, nullptr);
    coming_back->pause.cancel();
    coming_back->entered.open();
  }
}

}  // namespace acc::rendezvous
