// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "acc/base/seconds_text.hpp"
#include "acc/base/text.hpp"
#include "agent/agent_impl.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <algorithm>

// The agent until a round is formed: connect, Enter, wait. A lost connection or a failed attempt is
// repeated with back-off until JobTimes::join has passed; what the server refuses is final.
namespace acc::rendezvous {

namespace asio = boost::asio;
using rounds::Dropped;
using Milliseconds = Agent::Milliseconds;

namespace {

/// Shortest interval of on_progress messages that repeat.
constexpr Milliseconds kProgressInterval{10'000};

double seconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

/// Checks this machine's values. Throws Error(config) for one that a server would refuse by closing
/// the connection without a reason.
void check_own(const rounds::Enter& enter) {
  try {
    rounds::check(rounds::AgentMessage(enter));
  } catch (const Error& error) {
    throw Error(Errc::config, error.what());
  }
}

}  // namespace

/// Starts the join timeout and forgets the last end, unless that was the end of the job.
void Agent::Impl::wait_from_now() {
  waiting_since_ = std::chrono::steady_clock::now();
  said_at_.reset();
  if (!over_) {
    end_.reset();
  }
}

asio::awaitable<std::optional<Round>> Agent::Impl::join(std::string host, std::uint16_t port,
                                                        Machine me) {
  servers_.front() = {std::move(host), port};
  enter_.machine = std::move(me);
  wait_from_now();
  co_return co_await await_round();
}

asio::awaitable<void> Agent::Impl::ask(std::string host, std::uint16_t port, Machine me) {
  servers_.front() = {std::move(host), port};
  enter_.machine = std::move(me);
  enter_.only_asks = true;
  wait_from_now();
  co_await try_to_enter();
  if (link_) {
    std::exchange(link_, nullptr)->close();
  }
  if (dropped_ && dropped_->why == Dropped::Why::config) {
    refuse(*dropped_);
  }
}

asio::awaitable<std::optional<Round>> Agent::Impl::rejoin(std::uint16_t store_port) {
  enter_.machine.store_port = introduced_.store_port = store_port;
  wait_from_now();
  send(rounds::Rejoin{store_port});
  co_return co_await await_round();
}

/// Waits until a round is formed. Connects again if the connection is lost: a server that goes away
/// while machines wait may be restarted. There is a back-off pause before each further connection,
/// so that a server that closes every connection is not flooded.
asio::awaitable<std::optional<Round>> Agent::Impl::await_round() {
  Backoff backoff;
  while (!round_) {
    if (closed_ || over_) {
      co_return std::nullopt;
    }
    if (dropped_) {
      refuse(*dropped_);
    }
    std::string failure;
    if (!link_) {
      failure = co_await try_to_enter();
    } else {
      // Closed before the wait: only a message that arrives from now on opens it.
      news_.close();
      co_await news_.passed();
    }
    if (failure.empty() && !link_) {
      failure = why_lost_;
    }
    if (!failure.empty() && !round_ && !closed_ && !over_ && !dropped_) {
      co_await pause_after(failure, backoff);
    }
  }
  co_return round_;
}

asio::awaitable<void> Agent::Impl::pause_after(const std::string& failure, Backoff& backoff) {
  if (try_next_server()) {
    co_return;
  }
  const auto now = std::chrono::steady_clock::now();
  if (now >= deadline()) {
    throw Error(Errc::timeout,
                fmt::format("timeout: no answer within {} from the rendezvous at {}: {}",
                            seconds_text(enter_.times.join), where(), failure));
  }
  say_what_is_waited_for("waiting for the rendezvous (" + failure + ")",
                         " of " + seconds_text(enter_.times.join));
  pause_.expires_at(
      std::min<std::chrono::steady_clock::time_point>(now + backoff.next(), deadline()));
  co_await pause_.async_wait(asio::as_tuple(asio::use_awaitable));
}

/// Makes one attempt to connect and enter. Returns the reason of a failure, or "" if the server has
/// sent Welcome or Dropped.
asio::awaitable<std::string> Agent::Impl::try_to_enter() {
  // The place of a server that recovers is not taken.
  if (events_.before_connecting && !recovers_) {
    enter_.machine.serves = events_.before_connecting();
  }
  const auto limit =
      std::clamp(std::chrono::floor<Milliseconds>(deadline() - std::chrono::steady_clock::now()),
                 Milliseconds(1), attempt_timeout());
  asio::ip::tcp::socket socket(executor_);
  const std::string failure = co_await connect(socket, limit);
  logger(Component::rendezvous)
      .debug("connecting to {}: {}", where(), failure.empty() ? "connected" : failure);
  if (!failure.empty() || closed_) {
    co_return failure;
  }
  // A copy: the address and the port belong to this connection only.
  rounds::Enter enter = enter_;
  enter.machine.address = address_from(socket);
  if (events_.before_entering) {
    enter.machine.store_port = events_.before_entering(enter.machine.address);
  }
  check_own(enter);
  introduced_ = enter.machine;
  welcome_ = false;
  link_ = make_link(std::move(socket), limit, recovers_);
  why_lost_.clear();
  link_->start();
  link_->send(std::move(enter));
  while (link_ && !welcome_ && !dropped_) {
    news_.close();
    co_await news_.passed();
  }
  co_return welcome_ || dropped_ ? "" : why_lost_;
}

/// Connects to the current server, unless it has just refused every token of this machine. Returns
/// the reason of a failure, or "".
asio::awaitable<std::string> Agent::Impl::connect(asio::ip::tcp::socket& socket,
                                                  Milliseconds limit) {
  if (security_) {
    token_ = token_to_prove();
    if (!token_) {
      co_return "the server refuses the token; waiting for another one in the token file";
    }
  }
  co_return co_await dial(socket, server().host, server().port, limit);
}

/// Returns the first of the tokens that the server has not refused a moment ago. The file of the
/// tokens may have been changed since the last connection.
std::optional<Tokens> Agent::Impl::token_to_prove() const {
  const auto now = std::chrono::steady_clock::now();
  for (Tokens& token : security_->tokens.now().each()) {
    const auto found = refused_.find({server_, token.current()});
    if (found == refused_.end() || now >= found->second + kRefusalPause) {
      return std::move(token);
    }
  }
  return std::nullopt;
}

/// The server refuses the token of the current connection. The next connection proves another one,
/// if there is one. A machine that was admitted before says why it waits, and waits for another
/// token: that of the job has been replaced.
void Agent::Impl::hear_refusal(const std::string& why) {
  refused_[{server_, token_->current()}] = std::chrono::steady_clock::now();
  if (token_to_prove()) {
    return;
  }
  if (!was_welcome_) {
    dropped_ = Dropped{Dropped::Why::config, why};
  } else if (events_.on_progress) {
    events_.on_progress(
        fmt::format("rendezvous at {}: {}; waiting for another token in the file", where(), why));
  }
}

/// Returns the address at which other machines reach this one: the given one, else the local
/// address of the connection, else (server on this machine) the server's host.
std::string Agent::Impl::address_from(const asio::ip::tcp::socket& socket) const {
  if (!enter_.machine.address.empty()) {
    return enter_.machine.address;
  }
  const std::string own = own_address(socket);
  return own.empty() ? server().host : own;
}

/// The callbacks of the link hold a weak pointer, because the link may outlive the agent.
std::shared_ptr<AgentLink> Agent::Impl::make_link(asio::ip::tcp::socket socket,
                                                  Milliseconds silence_limit, bool comes_back) {
  std::unique_ptr<secure::SecureLink> encryption;
  if (security_) {
    encryption = std::make_unique<secure::SecureLink>(
        security_, server().host, secure::Admission{Role::agent, enter_.run_id}, token_);
  }
  AgentLink::Events events{.on_message =
                               [self = weak_from_this()](rounds::ServerMessage message) {
                                 if (const auto agent = self.lock()) {
                                   agent->hear(std::move(message));
                                 }
                               },
                           .on_end =
                               [self = weak_from_this()](const std::string& why) {
                                 if (const auto agent = self.lock()) {
                                   agent->lose(why);
                                 }
                               },
                           .on_refusal =
                               [self = weak_from_this()](const std::string& why) {
                                 if (const auto agent = self.lock()) {
                                   agent->hear_refusal(why);
                                 }
                               }};
  return std::make_shared<AgentLink>(std::move(socket), std::move(encryption), silence_limit,
                                     comes_back, std::move(events));
}

void Agent::Impl::say_what_is_waited_for(const std::string& what, const std::string& limit) {
  const auto now = std::chrono::steady_clock::now();
  if (closed_ || !events_.on_progress || (said_at_ && now < *said_at_ + kProgressInterval)) {
    return;
  }
  said_at_ = now;
  events_.on_progress(
      fmt::format("{} at {}, {:.0f} s{}", what, where(), seconds(now - waiting_since_), limit));
}

void Agent::Impl::refuse(const Dropped& dropped) const {
  const Errc code = dropped.why == Dropped::Why::timeout ? Errc::timeout : Errc::config;
  throw Error(code, fmt::format("rendezvous at {}: {}", where(), printable(dropped.reason)));
}

}  // namespace acc::rendezvous
