// SPDX-License-Identifier: Apache-2.0
// Fuzzes rounds::Jobs: agents of several jobs connect, send any message in any order, stop sending
// and disconnect, while time passes. Input: a list of events, see take_event.
#include "rounds/jobs.hpp"

#include "acc/base/error.hpp"
#include "input.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

namespace {

using namespace acc::rendezvous::rounds;
using acc::fuzz::Input;
using acc::fuzz::require;
using acc::rendezvous::AttemptEnd;
using acc::rendezvous::Round;
using std::chrono::milliseconds;

/// One connection, with the state that the messages of the server promise.
struct Agent {
  enum class State : std::uint8_t { waiting, in_round, between, over };

  std::string run_id{};
  int local_world_size = 0;
  State state = State::waiting;
  int last_round = -1;
};

// A 64-bit clock of nanoseconds covers 292 years, and deadlines are up to ten years ahead.
constexpr std::chrono::years kEndOfTime{200};

class World {
  using State = Agent::State;
  using Next = acc::rendezvous::RoundResult::Next;

 public:
  void connect(AgentMessage message) {
    agents_.try_emplace(next_id_);
    receive(next_id_++, std::move(message));
  }

  /// Returns one of the connected agents; an unused id if there is none.
  AgentId pick(std::size_t which) const {
    return agents_.empty()
               ? next_id_
               : std::next(agents_.begin(), static_cast<std::ptrdiff_t>(which % agents_.size()))
                     ->first;
  }

  void receive(AgentId id, AgentMessage message) {
    if (!agents_.contains(id)) {
      return;
    }
    if (const auto* enter = std::get_if<Enter>(&message)) {
      agents_[id].run_id = enter->run_id;
      agents_[id].local_world_size = enter->machine.local_world_size;
    } else if (std::holds_alternative<Leave>(message)) {
      agents_[id] = {};
    } else if (std::holds_alternative<Rejoin>(message) && agents_[id].state == State::between) {
      agents_[id].state = State::waiting;
    }
    Outbox out;
    bool breaks_protocol = false;
    try {
      jobs_.receive(id, std::move(message), now_, out);
    } catch (const acc::Error& error) {
      require(error.code() == acc::Errc::protocol, "a bad message is a protocol error");
      require(out.empty(), "a bad message changes nothing");
      breaks_protocol = true;
    }
    deliver(out);
    if (breaks_protocol) {
      lose(id);
    }
  }

  void lose(AgentId id) {
    if (agents_.erase(id) > 0) {
      Outbox out;
      jobs_.lose(id, "its connection has ended", now_, out);
      deliver(out);
    }
  }

  void pass(milliseconds time) {
    now_ += time;
    Outbox out;
    jobs_.pass(now_, out);
    deliver(out);
    require(jobs_.next_deadline() > now_, "everything due is done: the server does not spin");
  }

  void pass_to_deadline() {
    if (jobs_.next_deadline() != Time::max()) {
      pass(
          std::max(milliseconds(0), std::chrono::ceil<milliseconds>(jobs_.next_deadline() - now_)));
    }
  }

  [[nodiscard]] bool has_time() const { return now_ < Time(kEndOfTime); }

  void end() {
    while (!agents_.empty()) {
      lose(agents_.begin()->first);
    }
    pass_to_deadline();  // a finished elastic job is remembered for a while
    pass_to_deadline();
    require(jobs_.size() == 0, "jobs without agents are deleted");
    require(jobs_.next_deadline() == Time::max(), "without jobs nothing is due");
    require(jobs_.bytes() == 0, "without jobs no memory is counted");
  }

 private:
  void deliver(const Outbox& out) {
    std::map<std::pair<std::string, int>, std::vector<Round>> formed;
    std::vector<AgentId> dropped;
    for (const OutgoingMessage& outgoing : out) {
      require(agents_.contains(outgoing.to), "messages go to connected agents only");
      Agent& agent = agents_[outgoing.to];
      std::string_view frame = *outgoing.frame;
      // Throws if an agent would refuse the server's message.
      const auto message = take_server_message(frame).value();
      if (const auto* news = std::get_if<Formed>(&message)) {
        check_formed(agent, news->round);
        formed[{agent.run_id, news->round.round}].push_back(news->round);
      } else if (const auto* settled = std::get_if<Settled>(&message)) {
        check_settled(agent, settled->round_result.next);
      } else if (std::holds_alternative<Ends>(message) ||
                 std::holds_alternative<KillWorkers>(message)) {
        require(agent.state == State::in_round, "the end of a round goes to its agents only");
      }
      require(outgoing.is_last == std::holds_alternative<Dropped>(message), "Dropped is the last");
      if (outgoing.is_last) {
        agents_.erase(outgoing.to);
        dropped.push_back(outgoing.to);
      }
    }
    for (const auto& [name, rounds] : formed) {
      check_ranks(rounds);
    }
    for (const AgentId id : dropped) {
      Outbox more;
      jobs_.lose(id, "its connection has ended", now_, more);
      require(more.empty(), "a dropped agent is removed already");
    }
  }

  static void check_formed(Agent& agent, const Round& round) {
    require(agent.state == State::waiting, "a round consists of waiting agents");
    require(round.round > agent.last_round, "the numbers of rounds increase");
    const auto rank = static_cast<std::size_t>(round.machine_rank);
    require(rank < round.local_world_sizes.size(), "a rank is less than the number of machines");
    require(round.local_world_sizes[rank] == agent.local_world_size,
            "the local world size is the agent's");
    agent.state = State::in_round;
    agent.last_round = round.round;
  }

  /// A planned restart may be cancelled, and a waiting agent may ask for the end.
  static void check_settled(Agent& agent, Next next) {
    require(agent.state != State::over, "a job ends once");
    require(agent.state == State::in_round || next == Next::finished, "a round ends once");
    agent.state = next == Next::finished ? State::over : State::between;
  }

  /// Checks the Formed messages of one round, which all its agents receive at once.
  static void check_ranks(const std::vector<Round>& rounds) {
    std::set<int> ranks;
    for (const Round& each : rounds) {
      ranks.insert(each.machine_rank);
      require(each.local_world_sizes == rounds[0].local_world_sizes,
              "all agents receive the same sizes");
      require(each.store_host == rounds[0].store_host && each.store_port == rounds[0].store_port,
              "all agents receive the same store");
    }
    require(ranks.size() == rounds.size() && rounds[0].local_world_sizes.size() == rounds.size(),
            "ranks are a permutation");
  }

  Jobs jobs_;
  Time now_{};
  AgentId next_id_ = 0;
  std::map<AgentId, Agent> agents_;
};

milliseconds some_time(Input& input) {
  constexpr std::array<std::int64_t, 8> kTimes{1,      10,      500,         1'000,
                                               10'000, 600'000, 100'000'000, 315'000'000'000};
  return milliseconds(kTimes[static_cast<std::size_t>(input.below(kTimes.size()))]);
}

Enter enter(Input& input) {
  Enter message;
  message.run_id = std::array{"a", "b"}[static_cast<std::size_t>(input.below(2))];
  message.terms.num_machines = 1 + input.below(4);
  message.terms.min_machines = 1 + input.below(message.terms.num_machines);
  message.terms.max_restarts = input.below(3);
  message.terms.num_processes = std::max(0, input.below(16) - 8);
  message.times.join = some_time(input);
  message.times.last_call = some_time(input);
  message.times.heartbeat = std::max(some_time(input), kMinHeartbeat);
  message.times.settle = some_time(input);
  message.times.close = some_time(input);
  const int machine = input.below(16);
  message.terms.ranks_are_given = machine >= 12;
  if (machine >= 8) {
    message.machine.machine_rank = machine % 4;
  }
  message.machine.host = std::string("host") + static_cast<char>('0' + machine % 4);
  message.machine.address = message.machine.host;
  message.machine.store_port = 1;
  message.machine.local_world_size = 1 + input.below(3);
  return message;
}

End end(Input& input) {
  const int what = input.below(16);
  AttemptEnd end;
  end.machine_rank = what % 4;
  end.exit_status = what;
  end.restarts = what >= 8;
  end.cause = static_cast<AttemptEnd::Cause>(what / 2 % 3);
  end.reason = "a reason";
  return {end};
}

/// Passes an encoded message, to reach values that the functions above do not produce.
void raw_message(Input& input, World& world, AgentId id) {
  std::string_view bytes = input.take(input.byte());
  try {
    if (auto message = take_agent_message(bytes)) {
      world.receive(id, *std::move(message));
    }
  } catch (const acc::Error&) {
    world.lose(id);
  }
}

/// Takes one event: its type, an agent, and the fields of the event.
void take_event(Input& input, World& world) {
  const int event = input.below(11);
  const AgentId id = world.pick(input.byte());
  switch (event) {
    case 0: world.connect(enter(input)); break;
    case 1: world.receive(id, Rejoin{static_cast<std::uint16_t>(1 + input.byte())}); break;
    case 2: world.receive(id, Beat{}); break;
    case 3: world.receive(id, end(input)); break;
    case 4: world.receive(id, ForceStop{}); break;
    case 5: world.receive(id, Report{input.below(2) == 1, "a report"}); break;
    case 6: world.receive(id, Leave{}); break;
    case 7: world.lose(id); break;
    case 8: world.pass(some_time(input)); break;
    case 9: raw_message(input, world, id); break;
    default: world.pass_to_deadline(); break;
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  World world;
  while (!input.empty() && world.has_time()) {
    take_event(input, world);
  }
  world.end();
  return 0;
}
