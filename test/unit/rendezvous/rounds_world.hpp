// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/board.hpp"
#include "rounds/jobs.hpp"
#include "support/errors.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace acc::rendezvous::rounds::test {

/// Jobs without sockets: the messages to each agent, and a clock that only the test advances.
class World {
 public:
  World() {
    jobs_.tell_to([this](std::uint64_t job, const news::News& news) {
      board_.tell(job, news, Board::Time());
    });
  }
  void say(AgentId agent, AgentMessage message) {
    Outbox out;
    jobs_.receive(agent, std::move(message), now_, out);
    deliver(out);
  }
  void lose(AgentId agent, const std::string& why = "its connection has ended") {
    Outbox out;
    jobs_.lose(agent, why, now_, out);
    deliver(out);
  }
  /// Advances the time and meets every deadline, like a server that is never delayed. The agents in
  /// `alive` send heartbeats.
  void wait(JobTimes::Milliseconds time, const std::vector<AgentId>& alive = {}) {
    const Time end = now_ + time;
    const auto beat = [&] {
      for (const AgentId agent : alive) {
        if (!dropped_.contains(agent)) {
          say(agent, Beat{});
        }
      }
    };
    beat();
    for (Time next = now_ + kBeat; now_ < end; next += kBeat) {
      while (jobs_.next_deadline() <= std::min(next, end)) {
        now_ = std::max(now_, jobs_.next_deadline());
        pass();
      }
      now_ = std::min(next, end);
      beat();
    }
  }
  /// Advances the time without the server, as if it was suspended.
  void stall(JobTimes::Milliseconds time) {
    now_ += time;
    pass();
  }

  /// Returns the next message to `agent`, which must be a `Message`; fails the test if it is
  /// another one or if there is none.
  template <typename Message>
  Message heard(AgentId agent) {
    const auto message = next(agent);
    REQUIRE_MESSAGE(message.has_value(), "agent " << agent << " has received no message");
    const auto* wanted = std::get_if<Message>(&*message);
    REQUIRE_MESSAGE(wanted != nullptr,
                    "agent " << agent << " has heard message " << message->index());
    return *wanted;
  }
  /// Returns the next message to an agent, of any type, if there is one.
  std::optional<ServerMessage> next(AgentId agent) {
    auto& inbox = inboxes_[agent];
    if (inbox.empty()) {
      return std::nullopt;
    }
    std::optional<ServerMessage> message = std::move(inbox.front());
    inbox.pop_front();
    return message;
  }
  [[nodiscard]] bool has_heard_all(AgentId agent) { return inboxes_[agent].empty(); }
  void forget_what_was_heard() { inboxes_.clear(); }

  /// Returns the machines that are shown of the first job.
  [[nodiscard]] std::vector<std::string> shown_hosts() const {
    std::vector<std::string> hosts;
    for (const auto& [agent, machine] : board_.find(0)->machines) {
      if (machine.state <= Board::MachineState::ended) {
        hosts.push_back(machine.machine.host);
      }
    }
    return hosts;
  }
  [[nodiscard]] std::size_t num_jobs() const { return jobs_.size(); }
  [[nodiscard]] std::size_t bytes() const { return jobs_.bytes(); }
  void limit_bytes(std::size_t max_bytes) { jobs_.limit_bytes(max_bytes); }
  [[nodiscard]] bool has_deadline() const { return jobs_.next_deadline() != Time::max(); }

 private:
  static constexpr JobTimes::Milliseconds kBeat{500};

  void pass() {
    Outbox out;
    jobs_.pass(now_, out);
    deliver(out);
  }
  void deliver(const Outbox& out) {
    for (const OutgoingMessage& outgoing : out) {
      std::string_view bytes = *outgoing.frame;
      ServerMessage message = *take_server_message(bytes);
      if (outgoing.is_last) {
        dropped_.insert(outgoing.to);
      }
      if (!std::holds_alternative<Beat>(message)) {
        inboxes_[outgoing.to].push_back(std::move(message));
      }
    }
  }

  Board board_;
  Jobs jobs_;
  Time now_ = Time() + std::chrono::hours(1);
  std::map<AgentId, std::deque<ServerMessage>> inboxes_;
  std::set<AgentId> dropped_;
};

}  // namespace acc::rendezvous::rounds::test
