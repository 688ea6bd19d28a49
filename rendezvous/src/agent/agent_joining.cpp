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
  lines_.begin();
  if (!place_.is<Place::Over>()) {
    end_.reset();
  }
}

// Each coroutine of Agent holds a copy of impl_, so that the state outlives an Agent that is
// destroyed while the coroutine waits.

asio::awaitable<std::optional<Round>> Agent::join(std::string host, std::uint16_t port,
                                                  Machine me) {
  const auto impl = impl_;
  impl->servers_.set_first({std::move(host), port});
  impl->enter_.machine = std::move(me);
  impl->wait_from_now();
  co_return co_await impl->await_round();
}

asio::awaitable<void> Agent::ask(std::string host, std::uint16_t port, Machine me) {
  const auto impl = impl_;
  impl->servers_.set_first({std::move(host), port});
  impl->enter_.machine = std::move(me);
  impl->enter_.only_asks = true;
  impl->wait_from_now();
  co_await impl->try_to_enter();
  impl->connection_.end();
  const Dropped* const refusal = impl->place_.refusal();
  if (refusal != nullptr && refusal->why == Dropped::Why::config) {
    impl->refuse(*refusal);
  }
}

asio::awaitable<std::optional<Round>> Agent::rejoin(std::uint16_t store_port) {
  const auto impl = impl_;
  impl->enter_.machine.store_port = impl->introduced_.store_port = store_port;
  impl->wait_from_now();
  impl->connection_.send(rounds::Rejoin{store_port});
  co_return co_await impl->await_round();
}

/// Waits until a round is formed. Connects again if the connection is lost: a server that goes away
/// while machines wait may be restarted. There is a back-off pause before each further connection,
/// so that a server that closes every connection is not flooded.
asio::awaitable<std::optional<Round>> Agent::Impl::await_round() {
  Backoff backoff;
  while (!round_) {
    if (place_.is_final()) {
      co_return std::nullopt;
    }
    if (place_.refusal() != nullptr) {
      refuse(*place_.refusal());
    }
    std::string failure;
    if (!connection_) {
      failure = co_await try_to_enter();
    } else {
      // Closed before the wait: only a message that arrives from now on opens it.
      news_.close();
      co_await news_.passed();
    }
    if (failure.empty() && !connection_) {
      failure = connection_.why();
    }
    if (!failure.empty() && !round_ && place_.is<Place::Wanted>()) {
      co_await pause_after(failure, backoff);
    }
  }
  co_return round_->round;
}

asio::awaitable<void> Agent::Impl::pause_after(const std::string& failure, Backoff& backoff) {
  if (servers_.try_next()) {
    co_return;
  }
  const auto now = std::chrono::steady_clock::now();
  if (now >= deadline()) {
    throw Error(Errc::timeout,
                fmt::format("timeout: no answer within {} from the rendezvous at {}: {}",
                            seconds_text(enter_.times.join), servers_.where(), failure));
  }
  lines_.print_wait("waiting for the rendezvous (" + failure + ")", servers_.where(),
                    " of " + seconds_text(enter_.times.join));
  pause_.expires_at(
      std::min<std::chrono::steady_clock::time_point>(now + backoff.next(), deadline()));
  co_await pause_.async_wait(asio::as_tuple(asio::use_awaitable));
}

/// Makes one attempt to connect and enter. Returns the reason of a failure, or "" if the server has
/// sent Welcome or Dropped.
asio::awaitable<std::string> Agent::Impl::try_to_enter() {
  // The place of a server that recovers is not taken.
  if (events_.before_connecting && !connection_.recovers()) {
    enter_.machine.serves = events_.before_connecting();
  }
  const auto limit =
      std::clamp(std::chrono::floor<Milliseconds>(deadline() - std::chrono::steady_clock::now()),
                 Milliseconds(1), servers_.attempt_timeout());
  asio::ip::tcp::socket socket(executor_);
  const std::string failure = co_await connect(socket, limit);
  logger(Component::rendezvous)
      .debug("connecting to {}: {}", servers_.where(), failure.empty() ? "connected" : failure);
  if (!failure.empty() || place_.is<Place::Closed>()) {
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
  begin_connection(std::move(socket), limit, std::move(enter));
  while (connection_ && !connection_.is_admitted() && !place_.is<Place::Refused>()) {
    news_.close();
    co_await news_.passed();
  }
  co_return connection_.is_admitted() || place_.is<Place::Refused>() ? "" : connection_.why();
}

/// Connects to the current server, unless it has just refused every token of this machine. Returns
/// the reason of a failure, or "".
asio::awaitable<std::string> Agent::Impl::connect(asio::ip::tcp::socket& socket,
                                                  Milliseconds limit) {
  if (!servers_.choose_token()) {
    co_return "the server refuses the token; waiting for another one in the token file";
  }
  const ServerChoice::Address& server = servers_.current();
  co_return co_await dial(socket, server.host, server.port, limit);
}

/// The server refuses the token of the current connection. The next connection proves another one,
/// if there is one. A machine that was admitted before says why it waits, and waits for another
/// token: that of the job has been replaced.
void Agent::Impl::on_token_refused(const std::string& why) {
  if (servers_.refuse_token()) {
    return;
  }
  if (!connection_.was_admitted()) {
    place_.move_to(Place::Refused{{Dropped::Why::config, why}});
  } else {
    lines_.print(fmt::format("rendezvous at {}: {}; waiting for another token in the file",
                             servers_.where(), why));
  }
}

/// Returns the address at which other machines reach this one: the given one, else the local
/// address of the connection, else (server on this machine) the server's host.
std::string Agent::Impl::address_from(const asio::ip::tcp::socket& socket) const {
  if (!enter_.machine.address.empty()) {
    return enter_.machine.address;
  }
  const std::string own = own_address(socket);
  return own.empty() ? servers_.current().host : own;
}

/// Begins a connection with its first message. The callbacks of the link hold a weak pointer,
/// because the link may outlive the agent.
void Agent::Impl::begin_connection(asio::ip::tcp::socket socket, Milliseconds silence_limit,
                                   rounds::Enter enter) {
  const auto to_agent = [self = weak_from_this()](auto method) {
    return [self, method](auto argument) {
      if (const auto agent = self.lock()) {
        ((*agent).*method)(std::move(argument));
      }
    };
  };
  AgentLink::Events events{.on_message = to_agent(&Impl::on_message),
                           .on_end = to_agent(&Impl::lose),
                           .on_refusal = to_agent(&Impl::on_token_refused)};
  const auto link =
      std::make_shared<AgentLink>(std::move(socket), servers_.encryption(enter_.run_id),
                                  silence_limit, connection_.recovers(), std::move(events));
  connection_.begin(link);
  link->start();
  link->send(std::move(enter));
}

void Agent::Impl::refuse(const Dropped& dropped) const {
  const Errc code = dropped.why == Dropped::Why::timeout ? Errc::timeout : Errc::disagreement;
  throw Error(code,
              fmt::format("rendezvous at {}: {}", servers_.where(), printable(dropped.reason)));
}

}  // namespace acc::rendezvous
