#include "acc/rendezvous/agent.hpp"

#include "acc/base/error.hpp"
#include "acc/rendezvous/gate.hpp"
#include "agent_link.hpp"
#include "backoff.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace acc::rendezvous {

namespace asio = boost::asio;
using rounds::Dropped;
using Milliseconds = Agent::Milliseconds;

namespace {

constexpr auto kResult = asio::as_tuple(asio::use_awaitable);
/// A single attempt may take this long; a lost SYN should not eat the whole time.
constexpr Milliseconds kAttemptTimeout{10'000};
constexpr Milliseconds kProgressInterval{10'000};
/// For the last message of an agent that leaves.
constexpr Milliseconds kLastWords{1'000};

double seconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

/// What the server says arrives by `hear`, from the link; the awaitables wait for it at `news_`.
class Agent::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(const asio::any_io_executor& executor, std::string run_id, Terms terms, JobTimes times,
       Events events)
      : executor_(executor),
        events_(std::move(events)),
        enter_{.run_id = std::move(run_id), .terms = terms, .times = times, .machine = {}},
        news_(executor),
        end_known_(executor),
        pause_(executor) {
    end_known_.open();
  }

  Awaitable<std::optional<Round>> join(std::string host, std::uint16_t port, Machine me);
  Awaitable<std::optional<Round>> rejoin(std::uint16_t store_port);
  Awaitable<Settlement> settle(bool failed, std::string report);
  Awaitable<void> end_is_known() { return end_known_.passed(); }
  Awaitable<void> leave();

  void end(AttemptEnd end);
  void insist() { send(rounds::Insist{}); }
  [[nodiscard]] const std::optional<AttemptEnd>& known_end() const { return end_; }
  void hurry() { lose("the user waits no longer"); }

  /// Nobody is told anything any more.
  void close() noexcept;

 private:
  Awaitable<void> connect();
  Awaitable<std::string> try_to_enter();
  Awaitable<std::optional<Round>> await_round();
  void hear(rounds::ServerMessage message);
  void hear_ends(AttemptEnd end);
  void hear_settled(Settlement settlement);
  void hear_dropped(Dropped dropped);
  [[nodiscard]] bool may_come_back() const;
  void lose(const std::string& why);
  void wait_from_now();
  void say_what_is_waited_for(const std::string& what);
  [[noreturn]] void refuse(const Dropped& dropped) const;
  void remember_round();
  [[nodiscard]] Settlement own_settlement(std::string report) const;

  template <typename Message>
  void send(Message message) {
    if (link_) {
      link_->send(std::move(message));
    }
  }

  [[nodiscard]] std::string where() const { return fmt::format("{}:{}", host_, port_); }
  [[nodiscard]] std::chrono::steady_clock::time_point deadline() const {
    return waiting_since_ + enter_.times.join;
  }

  asio::any_io_executor executor_;
  Events events_;
  rounds::Enter enter_;  ///< what a new connection opens with
  std::string host_;
  std::uint16_t port_ = 0;
  std::shared_ptr<AgentLink> link_;  ///< null: there is no connection
  std::string why_lost_;
  bool closed_ = false;
  Gate news_;
  Gate end_known_;
  asio::steady_timer pause_;
  std::chrono::steady_clock::time_point waiting_since_;
  std::optional<std::chrono::steady_clock::time_point> said_at_;

  // What came of it, since the last join.
  bool welcome_ = false;
  bool over_ = false;
  std::optional<Dropped> dropped_;
  std::optional<Round> round_;  ///< that this machine is in, until it is settled
  std::optional<AttemptEnd> end_;
  std::optional<Settlement> settlement_;
};

void Agent::Impl::wait_from_now() {
  waiting_since_ = std::chrono::steady_clock::now();
  said_at_.reset();
  if (!over_) {
    end_.reset();
  }
}

asio::awaitable<std::optional<Round>> Agent::Impl::join(std::string host, std::uint16_t port,
                                                        Machine me) {
  host_ = std::move(host);
  port_ = port;
  enter_.machine = std::move(me);
  wait_from_now();
  co_return co_await await_round();
}

asio::awaitable<std::optional<Round>> Agent::Impl::rejoin(std::uint16_t store_port) {
  enter_.machine.store_port = store_port;
  wait_from_now();
  send(rounds::Rejoin{store_port});
  co_return co_await await_round();
}

/// A server that goes away while it forms a round may come again.
asio::awaitable<std::optional<Round>> Agent::Impl::await_round() {
  while (!round_) {
    if (closed_ || over_) {
      co_return std::nullopt;
    }
    if (dropped_) {
      refuse(*dropped_);
    }
    if (!link_) {
      co_await connect();
    } else {
      news_.close();
      co_await news_.passed();
    }
  }
  co_return round_;
}

asio::awaitable<void> Agent::Impl::connect() {
  Backoff backoff;
  while (!link_ && !closed_) {
    const std::string failure = co_await try_to_enter();
    if (failure.empty()) {
      co_return;
    }
    const auto pause = backoff.next();
    if (std::chrono::steady_clock::now() + pause >= deadline()) {
      throw Error(Errc::timeout,
                  fmt::format("no answer within {:g} s from the rendezvous at {}: {}",
                              seconds(enter_.times.join), where(), failure));
    }
    say_what_is_waited_for("waiting for the rendezvous (" + failure + ")");
    pause_.expires_after(pause);
    co_await pause_.async_wait(kResult);
  }
}

/// Returns why it failed, or "".
asio::awaitable<std::string> Agent::Impl::try_to_enter() {
  if (events_.before_connecting) {
    enter_.machine.serves = events_.before_connecting();
  }
  const auto limit =
      std::clamp(std::chrono::floor<Milliseconds>(deadline() - std::chrono::steady_clock::now()),
                 Milliseconds(1), kAttemptTimeout);
  asio::ip::tcp::socket socket(executor_);
  const std::string failure = co_await dial(socket, host_, port_, limit);
  if (!failure.empty() || closed_) {
    co_return failure;
  }
  rounds::Enter enter = enter_;
  if (enter.machine.address.empty()) {
    enter.machine.address = own_address(socket);
  }
  if (enter.machine.address.empty()) {
    enter.machine.address = host_;
  }
  welcome_ = false;
  const auto self = weak_from_this();
  link_ = std::make_shared<AgentLink>(std::move(socket), limit,
                                      AgentLink::Events{.on_message =
                                                            [self](rounds::ServerMessage message) {
                                                              if (const auto agent = self.lock()) {
                                                                agent->hear(std::move(message));
                                                              }
                                                            },
                                                        .on_end =
                                                            [self](const std::string& why) {
                                                              if (const auto agent = self.lock()) {
                                                                agent->lose(why);
                                                              }
                                                            }});
  why_lost_.clear();
  link_->start();
  link_->send(std::move(enter));
  while (link_ && !welcome_ && !dropped_) {
    news_.close();
    co_await news_.passed();
  }
  co_return welcome_ || dropped_ ? "" : why_lost_;
}

void Agent::Impl::hear(rounds::ServerMessage message) {
  if (auto* welcome = std::get_if<rounds::Welcome>(&message)) {
    welcome_ = true;
    link_->keep_alive(welcome->beat_interval, welcome->silence_limit);
  } else if (auto* waiting = std::get_if<rounds::Waiting>(&message)) {
    said_at_.reset();
    say_what_is_waited_for(waiting->text);
  } else if (auto* formed = std::get_if<rounds::Formed>(&message)) {
    round_ = std::move(formed->round);
  } else if (auto* ends = std::get_if<rounds::Ends>(&message)) {
    hear_ends(std::move(ends->end));
  } else if (std::holds_alternative<rounds::Insisted>(message)) {
    if (events_.on_insist) {
      events_.on_insist();
    }
  } else if (auto* settled = std::get_if<rounds::Settled>(&message)) {
    hear_settled(std::move(settled->settlement));
  } else if (auto* dropped = std::get_if<Dropped>(&message)) {
    hear_dropped(std::move(*dropped));
  }
  news_.open();
}

void Agent::Impl::hear_settled(Settlement settlement) {
  if (round_) {
    settlement_ = std::move(settlement);
    return;
  }
  over_ = true;  // the next round, that this machine was to join, will not be
  if (settlement.end) {
    hear_ends(std::move(*settlement.end));
  }
}

void Agent::Impl::hear_dropped(Dropped dropped) {
  if (dropped.why == Dropped::Why::lost) {
    why_lost_ = std::move(dropped.reason);  // the connection ends next
  } else if (dropped.why == Dropped::Why::over && (welcome_ || enter_.rounds_before > 0)) {
    over_ = true;
  } else {
    dropped_ = std::move(dropped);
  }
}

void Agent::Impl::hear_ends(AttemptEnd end) {
  end_ = end;
  end_known_.open();
  if (events_.on_end) {
    events_.on_end(end);
  }
}

/// Whether it makes sense to look for the server again: another round may be formed there.
bool Agent::Impl::may_come_back() const {
  const Terms& terms = enter_.terms;
  return !terms.ranks_are_given &&
         (terms.is_elastic() || round_->restart_count < terms.max_restarts);
}

/// The link is no more. In a round its end follows from that.
void Agent::Impl::lose(const std::string& why) {
  if (link_) {
    std::exchange(link_, nullptr)->close();
  }
  why_lost_ = why_lost_.empty() ? why : why_lost_;
  if (round_ && !settlement_ && !end_) {
    const char* server = enter_.terms.ranks_are_given ? "machine 0" : "the rendezvous";
    hear_ends({.host = enter_.machine.host,
               .exit_status = 1,
               .restarts = may_come_back(),
               .cause = AttemptEnd::Cause::membership,
               .reason = fmt::format("the connection to {} at {} is lost: {}", server, where(),
                                     why_lost_)});
  }
  end_known_.open();
  news_.open();
}

void Agent::Impl::end(AttemptEnd end) {
  if (!end_ && link_) {
    end_known_.close();
  }
  send(rounds::End{std::move(end)});
}

asio::awaitable<Settlement> Agent::Impl::settle(bool failed, std::string report) {
  send(rounds::Report{failed, report});
  while (link_ && !settlement_) {
    news_.close();
    co_await news_.passed();
  }
  if (!settlement_) {
    settlement_ = own_settlement(std::move(report));
  }
  remember_round();
  co_return *std::exchange(settlement_, std::nullopt);
}

/// For a server that does not know this job.
void Agent::Impl::remember_round() {
  const auto& end = settlement_->end;
  const bool used_restart = end && end->restarts &&
                            (end->cause == AttemptEnd::Cause::worker || !enter_.terms.is_elastic());
  enter_.rounds_before = round_->round + 1;
  enter_.restarts_before = round_->restart_count + (used_restart ? 1 : 0);
  round_.reset();
}

/// Without the server: what this machine knows.
Settlement Agent::Impl::own_settlement(std::string report) const {
  Settlement settlement;
  settlement.end = end_;
  settlement.machines.push_back({round_->machine_rank, enter_.machine.host, std::move(report)});
  settlement.next =
      end_ && end_->restarts ? Settlement::Next::next_round : Settlement::Next::finished;
  return settlement;
}

void Agent::Impl::say_what_is_waited_for(const std::string& what) {
  const auto now = std::chrono::steady_clock::now();
  if (closed_ || !events_.on_progress || (said_at_ && now < *said_at_ + kProgressInterval)) {
    return;
  }
  said_at_ = now;
  events_.on_progress(fmt::format("{} at {}, {:.0f} s of {:.0f} s", what, where(),
                                  seconds(now - waiting_since_), seconds(enter_.times.join)));
}

void Agent::Impl::refuse(const Dropped& dropped) const {
  const Errc code = dropped.why == Dropped::Why::timeout ? Errc::timeout : Errc::config;
  throw Error(code, fmt::format("rendezvous at {}: {}", where(), dropped.reason));
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

void Agent::Impl::close() noexcept {
  closed_ = true;
  if (link_) {
    std::exchange(link_, nullptr)->close();
  }
  pause_.cancel();
  end_known_.open();
  news_.open();
}

Agent::Agent(const asio::any_io_executor& executor, std::string run_id, Terms terms, JobTimes times,
             Events events)
    : impl_(std::make_shared<Impl>(executor, std::move(run_id), terms, times, std::move(events))) {}

Agent::~Agent() {
  impl_->close();
}

// Each of these holds the state until it is done, also where the agent is destroyed before.

asio::awaitable<std::optional<Round>> Agent::join(std::string host, std::uint16_t port,
                                                  Machine me) {
  const auto impl = impl_;
  co_return co_await impl->join(std::move(host), port, std::move(me));
}

asio::awaitable<std::optional<Round>> Agent::rejoin(std::uint16_t store_port) {
  const auto impl = impl_;
  co_return co_await impl->rejoin(store_port);
}

asio::awaitable<Settlement> Agent::settle(bool failed, std::string report) {
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

void Agent::end(AttemptEnd end) {
  impl_->end(std::move(end));
}

const std::optional<AttemptEnd>& Agent::known_end() const noexcept {
  return impl_->known_end();
}

void Agent::insist() {
  impl_->insist();
}

void Agent::hurry() {
  impl_->hurry();
}

void Agent::close() noexcept {
  impl_->close();
}

}  // namespace acc::rendezvous
