// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/agent.hpp"

#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "acc/base/text.hpp"
#include "agent/agent_impl.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>

#include <algorithm>
#include <iterator>

// The agent in a round: messages of the server, the end of the attempt, the round result, and the
// loss of the connection. agent_joining.cpp has the steps until a round is formed.
namespace acc::rendezvous {

namespace asio = boost::asio;
using rounds::Dropped;

namespace {

/// Time limit for sending Leave, the last message of an agent.
constexpr Agent::Milliseconds kLastWords{1'000};
/// Time limit for sending the rest of a failure report, which may be long.
constexpr Agent::Milliseconds kLastReport{10'000};

}  // namespace

std::optional<Agent::Milliseconds> Agent::Impl::status_interval() const noexcept {
  return status_interval_.count() > 0 ? std::optional(status_interval_) : std::nullopt;
}

/// Sends the ranks in parts, each far below the limit of a message.
void Agent::Impl::show(std::vector<RankStatus> ranks) {
  constexpr std::size_t kRanksPerMessage = 1024;
  constexpr std::size_t kMaxBacklog = std::size_t{64} << 10;
  if (!link_ || !welcome_ || status_interval_.count() == 0 || link_->backlog() > kMaxBacklog) {
    return;
  }
  for (std::size_t begin = 0; begin < ranks.size(); begin += kRanksPerMessage) {
    const std::size_t end = std::min(ranks.size(), begin + kRanksPerMessage);
    link_->send(rounds::Status{{std::make_move_iterator(ranks.begin() + static_cast<long>(begin)),
                                std::make_move_iterator(ranks.begin() + static_cast<long>(end))}});
  }
}

void Agent::Impl::show_report(std::string json) {
  if (link_ && welcome_ && status_interval_.count() > 0 &&
      json.size() <= rounds::kMaxFailureReportBytes) {
    link_->send(rounds::FailureReport{std::move(json)});
  }
}

void Agent::Impl::hear(rounds::ServerMessage message) {
  if (auto* welcome = std::get_if<rounds::Welcome>(&message)) {
    welcome_ = was_welcome_ = true;
    recovers_ = welcome->recovers;
    status_interval_ = welcome->status_interval;
    link_->keep_alive(welcome->beat_interval, welcome->silence_limit, recovers_);
    entered_.open();
  } else if (auto* waiting = std::get_if<rounds::Waiting>(&message)) {
    said_at_.reset();
    say_what_is_waited_for(waiting->text);  // only the server knows whether a time limit runs
  } else if (auto* formed = std::get_if<rounds::Formed>(&message)) {
    hear_formed(std::move(formed->round));
  } else if (auto* ends = std::get_if<rounds::Ends>(&message)) {
    hear_ends(std::move(ends->end));
  } else if (std::holds_alternative<rounds::Insisted>(message)) {
    if (events_.on_force_stop) {
      events_.on_force_stop();
    }
  } else if (auto* settled = std::get_if<rounds::Settled>(&message)) {
    hear_settled(std::move(settled->round_result));
  } else if (auto* dropped = std::get_if<Dropped>(&message)) {
    hear_dropped(std::move(*dropped));
  } else if (const auto* elsewhere = std::get_if<rounds::Elsewhere>(&message)) {
    const std::string leader = printable(elsewhere->leader);
    why_lost_ = "the daemon there stands by; " +
                (leader.empty() ? "none leads at the moment" : leader + " leads");
  }
  news_.open();
}

/// Checks the round against this machine's Enter. Throws Error(protocol), which makes the link end,
/// for a round in which this machine cannot take part.
void Agent::Impl::hear_formed(Round round) {
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
  round_ = std::move(round);
  logger(Component::rendezvous)
      .debug("round {} is formed at {}: machine {} of {}", round_->round, where(),
             round_->machine_rank, round_->num_machines());
}

void Agent::Impl::hear_settled(RoundResult round_result) {
  if (round_) {
    // Reports are in order of machine rank, so the last one has the largest.
    if (!round_result.machines.empty() &&
        round_result.machines.back().machine_rank >= round_->num_machines()) {
      throw Error(Errc::protocol,
                  fmt::format("machine_rank of a report is {}, expected less than "
                              "{}",
                              round_result.machines.back().machine_rank, round_->num_machines()));
    }
    round_result_ = std::move(round_result);
    return;
  }
  over_ = true;  // this machine has rejoined, but the next round was cancelled
  if (round_result.end) {
    hear_ends(std::move(*round_result.end));
  }
}

/// Dropped means one of three things: try again on a new connection (lost), the job this machine
/// belonged to has ended (over), or an error of the join (everything else).
void Agent::Impl::hear_dropped(Dropped dropped) {
  if (dropped.why == Dropped::Why::lost) {
    why_lost_ = std::move(dropped.reason);  // the server closes the connection next: see `lose`
    recovers_ = false;                      // it does not know this machine any more
  } else if (dropped.why == Dropped::Why::over && (welcome_ || enter_.rounds_before > 0)) {
    over_ = true;
    if (events_.on_progress) {
      events_.on_progress(fmt::format("rendezvous at {}: {}", where(), dropped.reason));
    }
  } else {
    dropped_ = std::move(dropped);
  }
}

void Agent::Impl::hear_ends(AttemptEnd end) {
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

/// True if another round may be formed after the connection was lost, so that reconnecting makes
/// sense: an elastic job, or restarts left. A static job ends with its machine 0.
bool Agent::Impl::may_come_back() const {
  const Terms& terms = enter_.terms;
  return !terms.ranks_are_given &&
         (terms.is_elastic() || round_->restart_count < terms.max_restarts);
}

/// Handles the loss of the connection. In a round of a server that recovers, the workers go on
/// while this agent connects again.
void Agent::Impl::lose(const std::string& why) {
  const bool is_in_round = round_ && !round_result_;
  if (is_in_round && !recovers_) {
    return give_up(why);
  }
  if (link_) {
    std::exchange(link_, nullptr)->close();
  }
  why_lost_ = why_lost_.empty() ? why : why_lost_;
  logger(Component::rendezvous).debug("connection to {} lost: {}", where(), why_lost_);
  entered_.open();
  if (!is_in_round) {
    end_known_.open();
    news_.open();
    return;
  }
  if (!std::exchange(is_coming_back_, true)) {
    asio::co_spawn(
        executor_, [self = shared_from_this()] { return self->come_back(); }, asio::detached);
  }
}

/// Handles the loss of a server that does not come back. In a running round it ends the attempt on
/// this machine: the server has lost this machine, too, so the others end theirs.
void Agent::Impl::give_up(const std::string& why) {
  stop_coming_back();
  recovers_ = false;
  if (link_) {
    std::exchange(link_, nullptr)->close();
  }
  why_lost_ = why_lost_.empty() ? why : why_lost_;
  logger(Component::rendezvous).debug("the server at {} is lost: {}", where(), why_lost_);
  if (round_ && !round_result_ && !end_) {
    hear_ends(end_alone());
  }
  end_known_.open();
  news_.open();
}

/// Returns the end of the attempt on this machine if the server cannot decide about it.
AttemptEnd Agent::Impl::end_alone() const {
  if (own_end_) {
    AttemptEnd end = *own_end_;
    end.machine_rank = round_->machine_rank;
    end.host = enter_.machine.host;
    end.restarts = end.restarts && may_come_back();
    return end;
  }
  const char* server = enter_.terms.ranks_are_given ? "machine 0" : "the rendezvous";
  return {
      .host = enter_.machine.host,
      .exit_status = 1,
      .restarts = may_come_back(),
      .cause = AttemptEnd::Cause::membership,
      .reason = fmt::format("the connection to {} at {} is lost: {}", server, where(), why_lost_)};
}

void Agent::Impl::end(AttemptEnd end) {
  if (!end_ && (link_ || is_coming_back_)) {
    end_known_.close();
  }
  end.reason.resize(std::min(end.reason.size(), rounds::kMaxReasonBytes));
  if (is_coming_back_) {
    // The workers of this machine have failed or must end: the server is not awaited for long.
    give_up_at_ = std::min<std::chrono::steady_clock::time_point>(
        give_up_at_, std::chrono::steady_clock::now() + enter_.times.heartbeat);
    return_pause_.cancel();
  }
  if (round_) {
    own_end_ = end;
  }
  send(rounds::End{std::move(end)});
}

void Agent::Impl::force_stop() {
  has_forced_stop_ = round_.has_value();
  send(rounds::ForceStop{});
}

asio::awaitable<RoundResult> Agent::Impl::settle(bool failed, std::string report) {
  report_ = rounds::Report{failed, report};
  send(*report_);
  while ((link_ || is_coming_back_) && !round_result_) {
    news_.close();
    co_await news_.passed();
  }
  if (!round_result_) {
    round_result_ = own_round_result(std::move(report));
  }
  remember_round();
  co_return *std::exchange(round_result_, std::nullopt);
}

/// Prepares Enter for a server that does not know this job, because the old one was lost: it must
/// continue the counts of rounds and restarts. Estimates whether the server counted this restart.
void Agent::Impl::remember_round() {
  const auto& end = round_result_->end;
  const bool used_restart = end && end->restarts &&
                            (end->cause == AttemptEnd::Cause::worker || !enter_.terms.is_elastic());
  const std::int64_t restarts = std::int64_t{round_->restart_count} + (used_restart ? 1 : 0);
  enter_.rounds_before = std::min(round_->round + 1, rounds::kMaxRoundsBefore);
  enter_.restarts_before =
      static_cast<int>(std::min<std::int64_t>(restarts, enter_.terms.max_restarts));
  stop_coming_back();
  round_.reset();
  own_end_.reset();
  report_.reset();
  has_forced_stop_ = false;
}

/// Returns the round result without the server, from what this machine knows.
RoundResult Agent::Impl::own_round_result(std::string report) const {
  RoundResult round_result;
  round_result.end = end_;
  round_result.machines.push_back({round_->machine_rank, enter_.machine.host, std::move(report)});
  round_result.next =
      end_ && end_->restarts ? RoundResult::Next::next_round : RoundResult::Next::finished;
  return round_result;
}

asio::awaitable<void> Agent::Impl::leave() {
  closed_ = true;
  if (link_) {
    link_->send(rounds::Leave{});
    const auto link = link_;
    co_await link->flushed(kLastWords);
  }
  close();
}

asio::awaitable<void> Agent::Impl::finish() {
  if (link_) {
    const auto link = link_;
    co_await link->flushed(kLastReport);
  }
  close();
}

void Agent::Impl::close() noexcept {
  closed_ = true;
  stop_coming_back();
  if (link_) {
    std::exchange(link_, nullptr)->close();
  }
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

// Each coroutine holds a copy of impl_, so that the state outlives an Agent that is destroyed while
// the coroutine waits.

asio::awaitable<std::optional<Round>> Agent::join(std::string host, std::uint16_t port,
                                                  Machine me) {
  const auto impl = impl_;
  co_return co_await impl->join(std::move(host), port, std::move(me));
}

asio::awaitable<void> Agent::ask(std::string host, std::uint16_t port, Machine me) {
  const auto impl = impl_;
  co_await impl->ask(std::move(host), port, std::move(me));
}

asio::awaitable<std::optional<Round>> Agent::rejoin(std::uint16_t store_port) {
  const auto impl = impl_;
  co_return co_await impl->rejoin(store_port);
}

asio::awaitable<RoundResult> Agent::settle(bool failed, std::string report) {
  const auto impl = impl_;
  co_return co_await impl->settle(failed, std::move(report));
}

asio::awaitable<void> Agent::end_is_known() {
  const auto impl = impl_;
  co_await impl->end_is_known();
}

asio::awaitable<void> Agent::leave() {
  const auto impl = impl_;
  co_await impl->leave();
}

asio::awaitable<void> Agent::finish() {
  const auto impl = impl_;
  co_await impl->finish();
}

void Agent::add_server(std::string host, std::uint16_t port) {
  impl_->add_server(std::move(host), port);
}

void Agent::end(AttemptEnd end) {
  impl_->end(std::move(end));
}

std::optional<Agent::Milliseconds> Agent::status_interval() const noexcept {
  return impl_->status_interval();
}

void Agent::show(std::vector<RankStatus> ranks) {
  impl_->show(std::move(ranks));
}

void Agent::show_report(std::string json) {
  impl_->show_report(std::move(json));
}

const std::optional<AttemptEnd>& Agent::known_end() const noexcept {
  return impl_->known_end();
}

void Agent::force_stop() {
  impl_->force_stop();
}

void Agent::hurry() {
  impl_->hurry();
}

void Agent::close() noexcept {
  impl_->close();
}

}  // namespace acc::rendezvous
