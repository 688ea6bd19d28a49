// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/agent.hpp"

#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "acc/base/text.hpp"
#include "agent/agent_impl.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <algorithm>
#include <iterator>

// The agent in a round: messages of the server, the end of the attempt, the round result, and the
// loss of the connection. agent_joining.cpp has the steps until a round is formed.
namespace acc::rendezvous {

namespace asio = boost::asio;
using rounds::Dropped;
using std::chrono::steady_clock;

namespace {

/// Time limit for sending Leave, the last message of an agent.
constexpr Agent::Milliseconds kLastWords{1'000};
/// Time limit for sending the rest of a failure report, which may be long.
constexpr Agent::Milliseconds kLastReport{10'000};

}  // namespace

/// Sends the ranks in parts, each far below the limit of a message.
void Agent::Impl::show(std::vector<RankStatus> ranks) {
  constexpr std::size_t kRanksPerMessage = 1024;
  constexpr std::size_t kMaxBacklog = std::size_t{64} << 10;
  if (!connection_.is_admitted() || !connection_.status_interval() ||
      connection_.link()->backlog() > kMaxBacklog) {
    return;
  }
  for (std::size_t begin = 0; begin < ranks.size(); begin += kRanksPerMessage) {
    const std::size_t end = std::min(ranks.size(), begin + kRanksPerMessage);
    connection_.send(
        rounds::Status{{std::make_move_iterator(ranks.begin() + static_cast<long>(begin)),
                        std::make_move_iterator(ranks.begin() + static_cast<long>(end))}});
  }
}

void Agent::Impl::show_report(std::string json) {
  if (connection_.is_admitted() && connection_.status_interval() &&
      json.size() <= rounds::kMaxFailureReportBytes) {
    connection_.send(rounds::FailureReport{std::move(json)});
  }
}

void Agent::Impl::on_message(rounds::ServerMessage message) {
  if (auto* welcome = std::get_if<rounds::Welcome>(&message)) {
    connection_.admit(*welcome);
    if (is_coming_back()) {
      round_->coming_back->entered.open();
    }
  } else if (auto* waiting = std::get_if<rounds::Waiting>(&message)) {
    if (!place_.is_final()) {
      lines_.change();  // only the server knows whether a time limit runs
      lines_.print_wait(waiting->text, servers_.where());
    }
  } else if (auto* formed = std::get_if<rounds::Formed>(&message)) {
    on_formed(std::move(formed->round));
  } else if (auto* ends = std::get_if<rounds::Ends>(&message)) {
    on_ends(std::move(ends->end));
  } else if (std::holds_alternative<rounds::KillWorkers>(message)) {
    if (events_.on_force_stop) {
      events_.on_force_stop();
    }
  } else if (auto* settled = std::get_if<rounds::Settled>(&message)) {
    on_settled(std::move(settled->round_result));
  } else if (auto* dropped = std::get_if<Dropped>(&message)) {
    on_dropped(std::move(*dropped));
  } else if (const auto* elsewhere = std::get_if<rounds::Elsewhere>(&message)) {
    const std::string leader = printable(elsewhere->leader);
    connection_.announce_end("the daemon there stands by; " +
                             (leader.empty() ? "none leads at the moment" : leader + " leads"));
  }
  news_.open();
}

/// Checks the round against this machine's Enter. Throws Error(protocol), which makes the link end,
/// for a round in which this machine cannot take part.
void Agent::Impl::on_formed(Round round) {
  const Machine& me = enter_.machine;
  const int size = round.local_world_sizes[static_cast<std::size_t>(round.machine_rank)];
  if (round_) {
    throw Error(Errc::protocol, "a round is formed before the last one is over");
  }
  if (size != me.local_world_size) {
    throw Error(Errc::protocol, fmt::format("local_world_size of this machine is {}, expected {}",
                                            size, me.local_world_size));
  }
  if (enter_.terms.ranks_are_given && round.machine_rank != me.machine_rank) {
    throw Error(Errc::protocol, fmt::format("machine_rank is {}, expected {}", round.machine_rank,
                                            me.machine_rank.value_or(-1)));
  }
  if (round.num_machines() > enter_.terms.num_machines) {
    throw Error(Errc::protocol, fmt::format("a round has {} machines, expected at most {}",
                                            round.num_machines(), enter_.terms.num_machines));
  }
  logger(Component::rendezvous)
      .debug("round {} is formed at {}: machine {} of {}", round.round, servers_.where(),
             round.machine_rank, round.num_machines());
  round_.emplace(OwnRound{std::move(round)});
}

void Agent::Impl::on_settled(RoundResult round_result) {
  if (round_) {
    // Reports are in order of machine rank, so the last one has the largest.
    if (!round_result.machines.empty() &&
        round_result.machines.back().machine_rank >= round_->round.num_machines()) {
      throw Error(Errc::protocol, fmt::format("machine_rank of a report is {}, expected less than "
                                              "{}",
                                              round_result.machines.back().machine_rank,
                                              round_->round.num_machines()));
    }
    round_->result = std::move(round_result);
    return;
  }
  place_.move_to(Place::Over{});  // this machine has rejoined, but the next round was cancelled
  if (round_result.end) {
    on_ends(std::move(*round_result.end));
  }
}

/// Dropped means one of three things: try again on a new connection (lost), the job this machine
/// belonged to has ended (over), or an error of the join (everything else).
void Agent::Impl::on_dropped(Dropped dropped) {
  if (dropped.why == Dropped::Why::lost) {
    // The server closes the connection next: see `lose`.
    connection_.announce_end(std::move(dropped.reason));
    connection_.forget_server();
  } else if (dropped.why == Dropped::Why::over &&
             (connection_.is_admitted() || enter_.rounds_before > 0)) {
    place_.move_to(Place::Over{});
    lines_.print(fmt::format("rendezvous at {}: {}", servers_.where(), dropped.reason));
  } else {
    place_.move_to(Place::Refused{std::move(dropped)});
  }
}

void Agent::Impl::on_ends(AttemptEnd end) {
  if (end_ == end) {
    return;  // repeated by a server that has recovered
  }
  logger(Component::rendezvous)
      .debug("the attempt ends by machine {} ({}), {}: {}", end.machine_rank, end.host,
             end.restarts ? "another follows" : "it was the last one", end.reason);
  end_ = end;
  end_known_.open();
  if (events_.on_end) {
    events_.on_end(end);
  }
}

/// Handles the loss of the connection. In a round of a server that recovers, the workers go on
/// while this agent connects again: for at most JobTimes::join or, once the attempt has ended on
/// this machine, the heartbeat timeout.
void Agent::Impl::lose(const std::string& why) {
  if (is_in_round() && !connection_.recovers()) {
    return give_up(why);
  }
  if (!is_in_round()) {
    // A spare may have waited for longer than the join timeout, which limits the time without a
    // server.
    lines_.leave_out(connection_.admitted_for());
    lines_.change();
  }
  connection_.end(why);
  logger(Component::rendezvous)
      .debug("connection to {} lost: {}", servers_.where(), connection_.why());
  if (is_coming_back()) {
    round_->coming_back->entered.open();
  }
  if (!is_in_round()) {
    end_known_.open();
    news_.open();
  } else if (!is_coming_back()) {
    const auto limit = round_->own_end && !end_ ? enter_.times.heartbeat : enter_.times.join;
    round_->coming_back = std::make_shared<Return>(executor_, steady_clock::now() + limit);
    asio::co_spawn(
        executor_,
        [self = shared_from_this(), coming_back = round_->coming_back] {
          return self->come_back(coming_back);
        },
        asio::detached);
  }
}

/// Handles the loss of a server that does not come back. In a running round it ends the attempt on
/// this machine: the server has lost this machine, too, so the others end theirs.
void Agent::Impl::give_up(const std::string& why) {
  stop_coming_back();
  connection_.forget_server();
  connection_.end(why);
  logger(Component::rendezvous)
      .debug("the server at {} is lost: {}", servers_.where(), connection_.why());
  if (is_in_round() && !end_) {
    on_ends(round_->end_alone(enter_, servers_.where(), connection_.why()));
  }
  end_known_.open();
  news_.open();
}

// The way back to a server that recovers: while the workers of the round go on, the agent connects
// again, says which round it is in, and repeats what the server may not have received.

/// Connects until the server has welcomed this agent, or until Return::give_up_at.
asio::awaitable<void> Agent::Impl::come_back(std::shared_ptr<Return> coming_back) {
  // A later loss of a connection may start another coroutine while this one waits in `dial`.
  const auto goes_on = [&] { return round_ && round_->coming_back == coming_back; };
  lines_.print(fmt::format(
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
      lines_.print(fmt::format("connected to the rendezvous at {} again", servers_.where()));
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

void Agent::Impl::end(AttemptEnd end) {
  if (!end_ && (connection_ || is_coming_back())) {
    end_known_.close();
  }
  end.reason.resize(std::min(end.reason.size(), rounds::kMaxReasonBytes));
  if (is_coming_back()) {
    // The workers of this machine have failed or must end: the server is not awaited for long.
    Return& coming_back = *round_->coming_back;
    coming_back.give_up_at = std::min<steady_clock::time_point>(
        coming_back.give_up_at, steady_clock::now() + enter_.times.heartbeat);
    coming_back.pause.cancel();
  }
  if (round_) {
    round_->own_end = end;
  } else if (!connection_) {  // between two rounds: no server learns of it
    close();
  }
  connection_.send(rounds::End{std::move(end)});
}

void Agent::Impl::force_stop() {
  if (round_) {
    round_->has_forced_stop = true;
  }
  connection_.send(rounds::ForceStop{});
}

void Agent::Impl::close() noexcept {
  place_.move_to(Place::Closed{});
  stop_coming_back();
  connection_.end();
  pause_.cancel();
  end_known_.open();
  news_.open();
}

Agent::Agent(const asio::any_io_executor& executor, std::string run_id, Terms terms, JobTimes times,
             Events events, std::shared_ptr<const ClientSecurity> security)
    : impl_(std::make_shared<Impl>(executor, std::move(run_id), std::move(terms), times,
                                   std::move(events), std::move(security))) {}

Agent::~Agent() {
  impl_->close();
}

asio::awaitable<RoundResult> Agent::settle(bool failed, std::string report) {
  const auto impl = impl_;
  auto& round = impl->round_;
  round->report = rounds::Report{failed, std::move(report)};
  impl->connection_.send(*round->report);
  while ((impl->connection_ || impl->is_coming_back()) && !round->result) {
    impl->news_.close();
    co_await impl->news_.passed();
  }
  if (!round->result) {
    round->result = round->own_result(impl->end_, impl->enter_.machine.host);
  }
  round->count_in(impl->enter_);
  impl->stop_coming_back();
  co_return *std::exchange(round, std::nullopt)->result;
}

asio::awaitable<void> Agent::leave() {
  const auto impl = impl_;
  impl->place_.move_to(Place::Closed{});
  if (const auto link = impl->connection_.link()) {
    link->send(rounds::Leave{});
    co_await link->flushed(kLastWords);
  }
  impl->close();
}

asio::awaitable<void> Agent::finish() {
  const auto impl = impl_;
  if (const auto link = impl->connection_.link()) {
    co_await link->flushed(kLastReport);
  }
  impl->close();
}

asio::awaitable<void> Agent::end_is_known() {
  const auto impl = impl_;
  co_await impl->end_known_.passed();
}

void Agent::add_server(std::string host, std::uint16_t port) {
  impl_->servers_.add({std::move(host), port});
}

void Agent::end(AttemptEnd end) {
  impl_->end(std::move(end));
}

std::optional<Agent::Milliseconds> Agent::status_interval() const noexcept {
  return impl_->connection_.status_interval();
}

void Agent::show(std::vector<RankStatus> ranks) {
  impl_->show(std::move(ranks));
}

void Agent::show_report(std::string json) {
  impl_->show_report(std::move(json));
}

const std::optional<AttemptEnd>& Agent::known_end() const noexcept {
  return impl_->end_;
}

void Agent::force_stop() {
  impl_->force_stop();
}

/// The last messages, such as the order to kill the workers of other machines, are sent before.
void Agent::hurry() {
  const auto give_up = [](std::shared_ptr<Impl> impl) -> asio::awaitable<void> {
    if (const auto link = impl->connection_.link()) {
      co_await link->flushed(kLastReport);
    }
    impl->give_up("the user does not wait any longer");
  };
  asio::co_spawn(impl_->executor_, give_up(impl_), asio::detached);
}

void Agent::close() noexcept {
  impl_->close();
}

}  // namespace acc::rendezvous
