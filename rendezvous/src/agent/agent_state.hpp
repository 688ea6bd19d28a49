// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/gate.hpp"
#include "acc/rendezvous/security.hpp"
#include "agent/agent_link.hpp"
#include "rounds/messages.hpp"
#include "secure/secure_link.hpp"

#include <boost/asio/steady_timer.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

// The parts of an agent's state (agent_impl.hpp).
namespace acc::rendezvous {

/// The place of an agent in its job. The phases Over and Closed are final.
class Place {
 public:
  struct Wanted {};  ///< it is in a round, or waits for one
  /// The server has refused this machine, which is an error of the next wait for a round.
  struct Refused {
    rounds::Dropped reason;
  };
  struct Over {};    ///< the job has ended without another round
  struct Closed {};  ///< by `leave` or `close`

  template <typename Phase>
  [[nodiscard]] bool is() const {
    return std::holds_alternative<Phase>(phase_);
  }
  [[nodiscard]] bool is_final() const { return is<Over>() || is<Closed>(); }
  /// Returns the refusal, or null.
  [[nodiscard]] const rounds::Dropped* refusal() const {
    const auto* refused = std::get_if<Refused>(&phase_);
    return refused != nullptr ? &refused->reason : nullptr;
  }
  /// Has no effect in a final phase.
  template <typename Phase>
  void move_to(Phase next) {
    if (!is_final()) {
      phase_ = std::move(next);
    }
  }

 private:
  std::variant<Wanted, Refused, Over, Closed> phase_;
};

/// Tells the user what an agent waits for, and for how long it has been waiting.
class WaitingLines {
 public:
  using Clock = std::chrono::steady_clock;

  /// `print_line`: empty if nobody wants to know.
  explicit WaitingLines(std::function<void(const std::string&)> print_line)
      : print_line_(std::move(print_line)) {}

  /// The wait begins.
  void begin() {
    since_ = Clock::now();
    printed_at_.reset();
  }
  [[nodiscard]] Clock::time_point since() const noexcept { return since_; }
  /// The last `time` does not count as a part of the wait.
  void leave_out(Clock::duration time) { since_ += std::min(time, Clock::now() - since_); }
  /// What it waits for has changed: the next line does not count as repeated.
  void change() { printed_at_.reset(); }

  void print(const std::string& line) const {
    if (print_line_) {
      print_line_(line);
    }
  }
  /// Prints "WHAT at WHERE, 12 s of 60 s". Lines that repeat have an interval.
  void print_wait(const std::string& what, const std::string& where,
                  const std::string& limit = "") {
    constexpr std::chrono::seconds kInterval{10};
    const auto now = Clock::now();
    if (!print_line_ || (printed_at_ && now < *printed_at_ + kInterval)) {
      return;
    }
    printed_at_ = now;
    print(fmt::format("{} at {}, {:.0f} s{}", what, where,
                      std::chrono::duration<double>(now - since_).count(), limit));
  }

 private:
  std::function<void(const std::string&)> print_line_;
  Clock::time_point since_;
  std::optional<Clock::time_point> printed_at_;
};

/// The connection of an agent to its server, if there is one.
class AgentConnection {
 public:
  void begin(std::shared_ptr<AgentLink> link) { phase_ = Open{.link = std::move(link)}; }

  /// Closes the connection, if there is one. If the server, or an earlier call without a connection
  /// since, has given a reason, that one stays.
  void end(const std::string& why = "") {
    std::string reason = this->why().empty() ? why : this->why();
    const auto ended = link();
    phase_ = None{std::move(reason)};
    if (ended) {
      ended->close();
    }
  }

  /// The server has admitted this machine: heartbeats begin.
  void admit(const rounds::Welcome& welcome) {
    if (auto* open = std::get_if<Open>(&phase_)) {
      open->admitted_at = std::chrono::steady_clock::now();
      open->link->keep_alive(welcome.beat_interval, welcome.silence_limit, welcome.recovers);
    }
    welcome_ = welcome;
  }
  [[nodiscard]] bool is_admitted() const {
    const auto* open = std::get_if<Open>(&phase_);
    return open != nullptr && open->admitted_at;
  }
  /// Returns the time since then; 0 without a connection.
  [[nodiscard]] std::chrono::steady_clock::duration admitted_for() const {
    return is_admitted() ? std::chrono::steady_clock::now() - *std::get<Open>(phase_).admitted_at
                         : std::chrono::steady_clock::duration(0);
  }

  // Of the last server that has admitted this machine, also after the end of the connection.

  [[nodiscard]] bool was_admitted() const noexcept { return welcome_.has_value(); }
  /// True if that server is awaited when it is gone (Welcome::recovers).
  [[nodiscard]] bool recovers() const noexcept { return welcome_ && welcome_->recovers; }
  /// The server does not know this machine any more, or is not awaited.
  void forget_server() noexcept {
    if (welcome_) {
      welcome_->recovers = false;
    }
  }
  /// Returns the interval of Welcome; empty: the server does not want to be shown ranks.
  [[nodiscard]] std::optional<AgentLink::Milliseconds> status_interval() const noexcept {
    return welcome_ && welcome_->status_interval.count() > 0
               ? std::optional(welcome_->status_interval)
               : std::nullopt;
  }

  /// The server has given the reason why it will close the connection.
  void announce_end(std::string why) {
    std::visit([&](auto& phase) { phase.why = std::move(why); }, phase_);
  }
  /// Returns the reason of the last loss, or that of `announce_end`.
  [[nodiscard]] const std::string& why() const {
    return std::visit([](const auto& phase) -> const std::string& { return phase.why; }, phase_);
  }

  /// Returns null if there is no connection.
  [[nodiscard]] std::shared_ptr<AgentLink> link() const {
    const auto* open = std::get_if<Open>(&phase_);
    return open != nullptr ? open->link : nullptr;
  }
  explicit operator bool() const noexcept { return std::holds_alternative<Open>(phase_); }

  /// Sends a message if there is a connection.
  void send(const rounds::AgentMessage& message) {
    if (const auto open = link()) {
      open->send(message);
    }
  }

 private:
  struct None {
    std::string why;
  };
  struct Open {
    std::shared_ptr<AgentLink> link;
    std::optional<std::chrono::steady_clock::time_point> admitted_at{};
    std::string why{};
  };

  std::variant<None, Open> phase_;
  std::optional<rounds::Welcome> welcome_;
};

/// The way back to a server that recovers, while the workers of a round go on.
struct Return {
  Return(const boost::asio::any_io_executor& executor,
         std::chrono::steady_clock::time_point give_up)
      : give_up_at(give_up), entered(executor), pause(executor) {}

  std::chrono::steady_clock::time_point give_up_at;
  Gate entered;                     ///< opened by Welcome and by the end of the connection
  boost::asio::steady_timer pause;  ///< back-off between attempts to connect
};

/// A round from Formed until `settle` returns: what the server has decided and this machine has
/// sent.
struct OwnRound {
  Round round;
  // Sent in this round; sent again on a new connection, because the server may not have them.
  std::optional<AttemptEnd> own_end{};
  bool has_forced_stop = false;
  std::optional<rounds::Report> report{};
  std::shared_ptr<Return> coming_back{};  ///< null unless the agent is connecting again
  std::optional<RoundResult> result{};

  /// Sends again what the server may not have received. `is_ended`: it has received the end.
  void repeat(AgentConnection& connection, bool is_ended) const;
  /// True if another round may be formed after the connection was lost, so that reconnecting makes
  /// sense: an elastic job, or restarts left. A static job ends with its machine 0.
  [[nodiscard]] bool may_be_followed(const Terms& terms) const;
  /// Returns the end of the attempt on this machine if the server cannot decide about it, because
  /// the connection to it is lost: `where` and `why`.
  [[nodiscard]] AttemptEnd end_alone(const rounds::Enter& enter, const std::string& where,
                                     const std::string& why) const;
  /// Returns the round result without the server, from what this machine knows.
  [[nodiscard]] RoundResult own_result(const std::optional<AttemptEnd>& end,
                                       const std::string& host) const;
  /// Prepares Enter for a server that does not know this job, because the old one was lost: it must
  /// continue the counts of rounds and restarts. Estimates whether the server counted this restart.
  void count_in(rounds::Enter& enter) const;
};

/// Chooses the address of the rendezvous at which an agent tries next, and the token that it proves
/// there. Uses no socket.
class ServerChoice {
 public:
  using Milliseconds = std::chrono::milliseconds;
  struct Address {
    std::string host;
    std::uint16_t port = 0;
  };

  /// `security`: null if connections are not encrypted.
  explicit ServerChoice(std::shared_ptr<const ClientSecurity> security)
      : security_(std::move(security)) {}

  void set_first(Address address) { servers_.front() = std::move(address); }
  void add(Address address) { servers_.push_back(std::move(address)); }

  [[nodiscard]] const Address& current() const { return servers_[current_]; }
  [[nodiscard]] std::string where() const {
    return fmt::format("{}:{}", current().host, current().port);
  }
  /// The next attempt to connect is made at the next address. True if it was not tried since the
  /// last pause: no pause is needed.
  bool try_next() {
    current_ = (current_ + 1) % servers_.size();
    num_tried_ = (num_tried_ + 1) % servers_.size();
    return num_tried_ != 0;
  }
  /// The next address counts as the first one since a pause.
  void begin_again() { num_tried_ = 0; }
  /// Returns the time limit of one attempt to connect and enter.
  [[nodiscard]] Milliseconds attempt_timeout() const;

  /// Chooses the token for the next connection. False if the server has just refused every token of
  /// this machine.
  bool choose_token();
  /// The server refuses the token of the current connection. True if it may accept another one.
  bool refuse_token();
  /// Returns the encryption of a connection to the current server; null: none.
  [[nodiscard]] std::unique_ptr<secure::SecureLink> encryption(const std::string& run_id) const;

 private:
  [[nodiscard]] std::optional<Tokens> token_to_prove() const;

  std::shared_ptr<const ClientSecurity> security_;
  std::vector<Address> servers_{{}};
  std::size_t current_ = 0;
  std::size_t num_tried_ = 0;    ///< since the last pause
  std::optional<Tokens> token_;  ///< proved on the current connection
  /// Times at which a server, by its index, has refused a token.
  std::map<std::pair<std::size_t, std::string>, std::chrono::steady_clock::time_point> refused_;
};

}  // namespace acc::rendezvous
