// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rounds_world.hpp"

#include <fmt/format.h>

namespace acc::rendezvous::rounds::test {

using namespace std::chrono_literals;
using Ids = std::vector<AgentId>;

/// Agent n is on host n, with pid 1000 + n.
struct Fixture {
  World world;
  Terms terms{.num_machines = 2, .min_machines = 2};
  JobTimes times{.join = 60s, .last_call = 30s, .heartbeat = 5s, .settle = 95s, .close = 30s};

  static std::string secret(AgentId agent) { return fmt::format("{:032x}", agent); }
  Enter introduction(AgentId agent) const {
    const int n = static_cast<int>(agent);
    Machine machine{.machine_rank = {},
                    .host = "host" + std::to_string(n),
                    .address = "10.0.0." + std::to_string(n),
                    .store_port = static_cast<std::uint16_t>(2000 + n),
                    .local_world_size = 2,
                    .pid = 1000 + n,
                    .secret = secret(agent)};
    if (terms.ranks_are_given) {
      machine.machine_rank = n;
    }
    return {"run", terms, times, machine};
  }
  void enter(const Ids& agents) {
    for (const AgentId agent : agents) {
      world.say(agent, introduction(agent));
    }
  }
  void rejoin(const Ids& agents) {
    for (const AgentId agent : agents) {
      world.say(agent, Rejoin{static_cast<std::uint16_t>(3000 + agent)});
    }
  }
  void report(const Ids& agents, bool failed = false) {
    for (const AgentId agent : agents) {
      world.say(agent, Report{failed, "report of " + std::to_string(agent)});
    }
  }
  /// Checks that all `agents`, in order of machine rank, received the same round, and returns it.
  Round formed(const Ids& agents) {
    Round round;
    int rank = 0;
    for (const AgentId agent : agents) {
      while (auto message = next(agent)) {
        if (const auto* heard = std::get_if<Formed>(&*message)) {
          round = heard->round;
          break;
        }
      }
      CHECK(round.machine_rank == rank++);
      CHECK(round.secret == secret(agents.front()));
    }
    CHECK(round.num_machines() == rank);
    return round;
  }
  std::optional<ServerMessage> next(AgentId agent) { return world.next(agent); }
  void run(const Ids& agents) {
    enter(agents);
    formed(agents);
    world.forget_what_was_heard();
  }
  /// Checks that all `agents` receive the same message next, and returns it.
  template <typename Message>
  Message all_heard(const Ids& agents) {
    const auto first = world.heard<Message>(agents.front());
    for (std::size_t i = 1; i < agents.size(); ++i) {
      CHECK(world.heard<Message>(agents[i]) == first);
    }
    return first;
  }
  void check_no_more(const Ids& agents) {
    for (const AgentId agent : agents) {
      CHECK(world.has_heard_all(agent));
    }
  }
};

/// Three machines with given ranks.
struct Static : Fixture {
  Static() { terms = {.ranks_are_given = true, .num_machines = 3, .min_machines = 3}; }
};

/// Two to four machines.
struct Elastic : Fixture {
  Elastic() { terms = {.num_machines = 4, .min_machines = 2}; }
  /// Forms a first round of fewer machines than num_machines.
  void run_few(const Ids& agents) {
    enter(agents);
    world.wait(30s, agents);
    formed(agents);
    world.forget_what_was_heard();
  }
};

}  // namespace acc::rendezvous::rounds::test
