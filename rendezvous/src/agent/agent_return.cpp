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

/// Connects until the server has welcomed this agent, for at most JobTimes::join. If the attempt
/// ends meanwhile on this machine, it waits only for the heartbeat timeout from then on.
asio::awaitable<void> Agent::Impl::come_back() {
  // A later loss of a connection may start another coroutine while this one waits in `dial`.
  const int turn = ++return_turn_;
  const auto goes_on = [&] { return is_coming_back_ && turn == return_turn_; };
  give_up_at_ =
      steady_clock::now() + (own_end_ && !end_ ? enter_.times.heartbeat : enter_.times.join);
  if (events_.on_progress) {
    events_.on_progress(fmt::format(
        "the connection to the rendezvous at {} is lost ({}): the workers go on, connecting again",
        where(), why_lost_));
  }
  // Begins at the next address, if there is one: a server that is suspended accepts connections,
  // and the time that it takes to find this out is missing before the new one gives this machine
  // up.
  num_tried_ = 0;
  try_next_server();
  Backoff backoff;
  while (goes_on()) {
    const auto left = std::chrono::ceil<Milliseconds>(give_up_at_ - steady_clock::now());
    if (left <= Milliseconds(0)) {
      co_return give_up(why_lost_);
    }
    asio::ip::tcp::socket socket(executor_);
    const std::string failure = co_await connect(socket, std::min(left, attempt_timeout()));
    if (goes_on() && failure.empty()) {
      enter_again(std::move(socket));
    }
    while (goes_on() && link_ && !welcome_) {
      entered_.close();
      co_await entered_.passed();
    }
    if (goes_on() && link_) {
      is_coming_back_ = false;
      if (events_.on_progress) {
        events_.on_progress(fmt::format("connected to the rendezvous at {} again", where()));
      }
      co_return;
    }
    if (goes_on() && !try_next_server()) {
      return_pause_.expires_at(
          std::min<steady_clock::time_point>(steady_clock::now() + backoff.next(), give_up_at_));
      co_await return_pause_.async_wait(asio::as_tuple(asio::use_awaitable));
    }
  }
}

void Agent::Impl::enter_again(asio::ip::tcp::socket socket) {
  rounds::Enter enter = enter_;
  enter.machine = introduced_;
  enter.round = round_->round;
  welcome_ = false;
  why_lost_.clear();
  link_ = make_link(std::move(socket), attempt_timeout(), true);
  link_->start();
  link_->send(std::move(enter));
  if (own_end_ && !end_) {
    link_->send(rounds::End{*own_end_});
  }
  if (has_forced_stop_) {
    link_->send(rounds::ForceStop{});
  }
  if (report_) {
    link_->send(*report_);
  }
}

/// Ends `come_back`, at its next step.
void Agent::Impl::stop_coming_back() {
  is_coming_back_ = false;
  return_pause_.cancel();
  entered_.open();
}

}  // namespace acc::rendezvous
