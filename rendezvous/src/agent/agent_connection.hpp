// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/agent_link.hpp"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace acc::rendezvous {

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
      open->is_admitted = true;
      open->link->keep_alive(welcome.beat_interval, welcome.silence_limit, welcome.recovers);
    }
    welcome_ = welcome;
  }
  [[nodiscard]] bool is_admitted() const {
    const auto* open = std::get_if<Open>(&phase_);
    return open != nullptr && open->is_admitted;
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
    bool is_admitted = false;
    std::string why{};
  };

  std::variant<None, Open> phase_;
  std::optional<rounds::Welcome> welcome_;
};

}  // namespace acc::rendezvous
