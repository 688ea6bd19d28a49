#include "rounds_world.hpp"

namespace acc::rendezvous::rounds {
namespace {

using rendezvous::test::contains;
using rendezvous::test::error_of;
using test::World;
using Cause = AttemptEnd::Cause;
using Next = Settlement::Next;
using Why = Dropped::Why;
using Ids = std::vector<AgentId>;
using namespace std::chrono_literals;

/// Agent n is on host n, with pid 1000 + n.
struct Fixture {
  World world;
  Terms terms{.num_machines = 2, .min_machines = 2};
  JobTimes times{.join = 60s, .last_call = 30s, .heartbeat = 5s, .settle = 95s, .close = 30s};

  Enter introduction(AgentId agent) const {
    const int n = static_cast<int>(agent);
    Machine machine{.machine_rank = {},
                    .host = "host" + std::to_string(n),
                    .address = "10.0.0." + std::to_string(n),
                    .store_port = static_cast<std::uint16_t>(2000 + n),
                    .local_world_size = 2,
                    .pid = 1000 + n};
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
  /// The round that all `agents` have heard of, by machine rank.
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
  /// What all `agents` hear next.
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

TEST_CASE_FIXTURE(Fixture, "a round is formed when all machines are there, whoever came first") {
  enter({2});
  CHECK(world.heard<Welcome>(2) == Welcome{1s, 5s});
  CHECK(world.heard<Waiting>(2).text == "waiting for machines: 1 of 2 are here");
  enter({1});
  CHECK(world.heard<Formed>(2).round == Round{0, 0, 1, {2, 2}, "10.0.0.1", 2001});
  CHECK(world.heard<Welcome>(1) == Welcome{1s, 5s});
  CHECK(world.heard<Formed>(1).round == Round{0, 0, 0, {2, 2}, "10.0.0.1", 2001});
  report({1, 2});
  CHECK(all_heard<Settled>({1, 2}).settlement == Settlement{});
  check_no_more({1, 2});
  world.lose(1);
  CHECK(world.num_jobs() == 1);
  world.lose(2);
  CHECK(world.num_jobs() == 0);
  CHECK_FALSE(world.has_deadline());
}

}  // namespace
}  // namespace acc::rendezvous::rounds
