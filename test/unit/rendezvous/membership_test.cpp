#include "rounds_world.hpp"

#include <ctime>
#include <numeric>

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

// Who may come.

TEST_CASE_FIXTURE(Fixture, "machines that were started differently are refused, all of them") {
  struct Case {
    Terms other;
    const char* reason;
  };
  const Case cases[] = {
      {{.num_machines = 3, .min_machines = 2},
       "--num_machines 3, machine host1 (pid 1001) with --num_machines 2"},
      {{.num_machines = 2, .min_machines = 1},
       "a minimum of machines of 1, machine host1 (pid 1001) with a minimum of machines of 2"},
      {{.num_machines = 2, .min_machines = 2, .num_processes = 9},
       "--num_processes 9, machine host1 (pid 1001) with --num_processes 0"},
      {{.num_machines = 2, .min_machines = 2, .max_restarts = 2},
       "--max_restarts 2, machine host1 (pid 1001) with --max_restarts 0"},
  };
  for (const Case& each : cases) {
    enter({1});
    Enter other = introduction(2);
    other.terms = each.other;
    world.say(2, other);
    world.heard<Welcome>(1);
    world.heard<Waiting>(1);
    const auto dropped = all_heard<Dropped>({1, 2});
    CHECK(dropped.why == Why::config);
    CHECK(dropped.reason == "machine host2 (pid 1002) was started with " +
                                std::string(each.reason) + ": start all machines with the same");
    CHECK(world.num_jobs() == 0);
  }
}

TEST_CASE_FIXTURE(Fixture, "static and c10d do not make up one job") {
  enter({1});
  Enter other = introduction(2);
  other.terms.ranks_are_given = true;
  other.machine.machine_rank = 0;
  world.say(2, other);
  CHECK(world.heard<Dropped>(2).reason ==
        "machine 0 (host2, pid 1002) was started with --rdzv_backend static, machine host1 (pid "
        "1001) with --rdzv_backend c10d: start all machines with the same");
}

TEST_CASE_FIXTURE(Fixture, "once a round has been formed only the one that differs is refused") {
  run({1, 2});
  Enter other = introduction(3);
  other.terms.num_machines = 3;
  world.say(3, other);
  CHECK(world.heard<Dropped>(3).why == Why::config);
  check_no_more({1, 2, 3});
  report({1, 2});
  CHECK(all_heard<Settled>({1, 2}).settlement == Settlement{});
}

TEST_CASE_FIXTURE(Fixture, "numbers that do not add up are refused on every machine") {
  terms.num_processes = 5;
  enter({1, 2});
  world.forget_what_was_heard();
  enter({3, 4});
  world.heard<Welcome>(3);
  world.heard<Waiting>(3);
  world.heard<Welcome>(4);
  const auto dropped = all_heard<Dropped>({3, 4});
  CHECK(dropped.why == Why::config);
  CHECK(dropped.reason ==
        "--num_processes 5 is the total over all machines, but machine 0 (host3) brings 2, machine "
        "1 (host4) brings 2: 4 in all");
  CHECK(world.num_jobs() == 0);
}

TEST_CASE_FIXTURE(Fixture, "what no agent says is a violation, and nothing begins by it") {
  const auto refuse = [&](const AgentMessage& message) {
    return contains(error_of([&] { world.say(7, message); }), "protocol: ");
  };
  CHECK(refuse(Beat{}));
  CHECK(refuse(Leave{}));
  Enter enter = introduction(7);
  enter.terms.num_machines = 1 << 30;
  CHECK(refuse(enter));
  enter = introduction(7);
  enter.times.heartbeat = JobTimes::Milliseconds::max();
  CHECK(refuse(enter));
  enter = introduction(7);
  enter.machine.local_world_size = 0;
  CHECK(refuse(enter));
  enter = introduction(7);
  enter.machine.host.assign(2000, 'x');
  CHECK(refuse(enter));
  CHECK(world.num_jobs() == 0);
}

TEST_CASE_FIXTURE(Fixture, "a message that no race explains is a violation, and changes nothing") {
  enter({1});
  CHECK(contains(error_of([&] { enter({1}); }), "protocol: an agent says twice who it is"));
  CHECK(contains(error_of([&] { rejoin({1}); }), "protocol: "));
  CHECK(contains(error_of([&] { report({1}); }), "protocol: "));
  enter({2});
  formed({1, 2});
  CHECK(contains(error_of([&] { rejoin({1}); }), "protocol: "));
  report({1});
  CHECK(contains(error_of([&] { report({1}); }), "protocol: "));
  report({2});
  CHECK(all_heard<Settled>({1, 2}).settlement == Settlement{});
}

// Given ranks.

struct Static : Fixture {
  Static() { terms = {.ranks_are_given = true, .num_machines = 3, .min_machines = 3}; }
};

TEST_CASE_FIXTURE(Static, "given ranks are kept, whoever came first") {
  enter({2});
  world.heard<Welcome>(2);
  CHECK(world.heard<Waiting>(2).text == "waiting for machines 0,1 of 3");
  world.wait(10s, {2});
  CHECK(world.heard<Waiting>(2).text == "waiting for machines 0,1 of 3");
  enter({0});
  world.heard<Welcome>(0);
  CHECK(world.heard<Waiting>(0).text == "waiting for machines 1 of 3");
  enter({1});
  const Round round = formed({0, 1, 2});
  CHECK(round.store_host == "10.0.0.0");
  CHECK(round.local_world_sizes == std::vector<int>{2, 2, 2});
}

TEST_CASE_FIXTURE(Static, "a rank that is none is refused") {
  enter({3});
  CHECK(world.heard<Dropped>(3) ==
        Dropped{Why::config, "--machine_rank 3, expected 0 to 2 with --num_machines 3"});
  CHECK(world.num_jobs() == 0);
  enter({1});
  enter({4});
  CHECK(world.heard<Dropped>(4).why == Why::config);
  world.heard<Welcome>(1);
  world.heard<Waiting>(1);
  check_no_more({1});
}

TEST_CASE_FIXTURE(Static, "a rank that two machines claim is refused, on all") {
  enter({0, 1});
  Enter twin = introduction(1);
  twin.machine.host = "twin";
  world.say(9, twin);
  CHECK(world.heard<Dropped>(9) ==
        Dropped{Why::config,
                "--machine_rank 1 is claimed twice: on host1 (pid 1001) and on twin (pid 1001): "
                "give every machine its own"});
  for (const AgentId agent : {0, 1}) {
    world.heard<Welcome>(agent);
    world.heard<Waiting>(agent);
    CHECK(world.heard<Dropped>(agent).why == Why::config);
  }
  CHECK(world.num_jobs() == 0);
}

TEST_CASE_FIXTURE(Static, "an agent that connects anew takes its own place") {
  enter({0, 1});
  world.forget_what_was_heard();
  world.say(9, introduction(1));
  CHECK(world.heard<Dropped>(1).why == Why::lost);
  enter({2});
  formed({0, 9, 2});
}

TEST_CASE_FIXTURE(Static, "a machine that leaves before the round frees its rank") {
  enter({0, 1});
  world.say(1, Leave{});
  world.lose(0);
  CHECK(world.num_jobs() == 0);
  enter({0, 1});
  world.lose(1);
  enter({2});
  world.forget_what_was_heard();
  world.say(9, introduction(1));
  formed({0, 9, 2});
}

TEST_CASE_FIXTURE(Static, "an end before there is a round is that of one machine") {
  enter({0, 1});
  world.forget_what_was_heard();
  const AttemptEnd stop{-1, "host1", 143, false, Cause::stop, "stopped by SIGTERM"};
  world.say(1, End{stop});
  CHECK(world.heard<Settled>(1).settlement == Settlement{stop, {}, Next::finished});
  check_no_more({0});
  enter({2});
  world.say(9, introduction(1));
  formed({0, 9, 2});
}

TEST_CASE_FIXTURE(Static, "a late comer hears who has its rank") {
  run({0, 1, 2});
  world.say(9, introduction(1));
  CHECK(world.heard<Dropped>(9).reason ==
        "the job has started with machine 1 (host1, pid 1001), which was here before");
}

TEST_CASE_FIXTURE(Static, "the limit names the machines that never came") {
  enter({1});
  world.wait(20s, {1});
  times.join = 500ms;
  enter({0});
  world.forget_what_was_heard();
  world.wait(500ms, {0, 1});
  CHECK(world.heard<Dropped>(0) ==
        Dropped{Why::timeout,
                "machines 2 of 3 did not come within 0.5 s: start acclaunch there with the same "
                "flags and --machine_rank 2"});
  check_no_more({1});
  world.wait(40s, {1});
  while (const auto message = next(1)) {
    if (const auto* dropped = std::get_if<Dropped>(&*message)) {
      CHECK(contains(dropped->reason, "machines 2 of 3 did not come within 60 s"));
    }
  }
  CHECK(world.num_jobs() == 0);
}

TEST_CASE_FIXTURE(Static, "a machine that is lost ends the job") {
  terms.max_restarts = 5;
  run({0, 1, 2});
  world.lose(1);
  const AttemptEnd end{
      1,     "host1",      1,
      false, Cause::other, "the connection to machine 1 (host1) is lost: its connection has ended"};
  CHECK(all_heard<Ends>({0, 2}).end == end);
  report({0});
  check_no_more({0});
  report({2}, true);
  CHECK(all_heard<Settled>({0, 2}).settlement ==
        Settlement{end,
                   {{0, "host0", "report of 0"}, {1, "host1", ""}, {2, "host2", "report of 2"}},
                   Next::finished});
}

TEST_CASE_FIXTURE(Static, "a machine that is lost while a restart comes ends the job, whenever") {
  terms.max_restarts = 1;
  const AttemptEnd failure{0, "", 9, true, Cause::worker, "rank 0 failed"};
  SUBCASE("before all have reported") {
    run({0, 1, 2});
    world.say(0, End{failure});
    world.lose(1);
    CHECK(all_heard<Ends>({0, 2}).end.restarts);
    CHECK_FALSE(all_heard<Ends>({0, 2}).end.restarts);
    report({0, 2});
  }
  SUBCASE("while they join again") {
    run({0, 1, 2});
    world.say(0, End{failure});
    report({0, 1, 2});
    rejoin({0, 2});
    world.forget_what_was_heard();
    world.lose(1);
  }
  const auto settled = all_heard<Settled>({0, 2}).settlement;
  CHECK(settled.next == Next::finished);
  CHECK(contains(settled.end->reason, "the connection to machine 1 (host1) is lost"));
}

// Ranks by order.

TEST_CASE_FIXTURE(Fixture, "ranks follow the given rank, then the host, the address, the arrival") {
  terms = {.num_machines = 7, .min_machines = 7};
  const auto come = [&](AgentId agent, std::optional<int> rank, const char* host,
                        const char* address) {
    Enter enter = introduction(agent);
    enter.machine.machine_rank = rank;
    enter.machine.host = host;
    enter.machine.address = address;
    world.say(agent, enter);
  };
  come(10, {}, "node10", "a");
  come(11, {}, "node2", "10.0.0.10");
  come(12, 1, "zebra", "a");
  come(13, {}, "node2", "10.0.0.9");
  come(14, {}, "node02b", "a");
  come(15, 0, "zulu", "a");
  come(16, {}, "node10", "a");
  formed({15, 12, 13, 11, 14, 10, 16});
}

TEST_CASE_FIXTURE(Fixture, "machines keep their order from round to round") {
  terms = {.num_machines = 4, .min_machines = 2};
  enter({2, 3, 4});
  world.wait(30s, {2, 3, 4});
  formed({2, 3, 4});
  world.lose(2);
  report({3, 4});
  enter({1});
  rejoin({4, 3});
  const Round round = formed({3, 4, 1});
  CHECK(round.round == 1);
  CHECK(round.restart_count == 0);
  CHECK(round.store_host == "10.0.0.3");
  CHECK(round.store_port == 3003);
}

// When a round is complete.

struct Elastic : Fixture {
  Elastic() { terms = {.num_machines = 4, .min_machines = 2}; }
  /// Runs a first round of fewer machines than possible.
  void run_few(const Ids& agents) {
    enter(agents);
    world.wait(30s, agents);
    formed(agents);
    world.forget_what_was_heard();
  }
};

TEST_CASE_FIXTURE(Elastic, "the minimum will do when the last call is over") {
  enter({1, 2});
  world.wait(29s, {1, 2});
  enter({3});
  world.wait(900ms, {1, 2, 3});
  CHECK(world.heard<Welcome>(3) == Welcome{1s, 5s});
  CHECK(world.heard<Waiting>(3).text == "waiting for machines: 3 of 2 to 4 are here");
  check_no_more({3});
  world.wait(100ms, {1, 2, 3});
  formed({1, 2, 3});
}

TEST_CASE_FIXTURE(Elastic, "the last call is not waited for when all are there") {
  enter({1, 2, 3, 4});
  formed({1, 2, 3, 4});
}

TEST_CASE_FIXTURE(Elastic, "the last call begins anew when there were too few in between") {
  enter({1, 2});
  world.wait(20s, {1, 2});
  world.lose(2);
  world.wait(5s, {1});
  enter({3});
  world.wait(29s, {1, 3});
  world.forget_what_was_heard();
  world.wait(1s, {1, 3});
  formed({1, 3});
}

TEST_CASE_FIXTURE(Elastic, "each machine waits as long as it was told to") {
  enter({1});
  world.forget_what_was_heard();
  world.wait(59s, {1});
  world.forget_what_was_heard();
  world.wait(1s, {1});
  CHECK(world.heard<Dropped>(1) ==
        Dropped{Why::timeout,
                "1 of 2 to 4 machines came within 60 s: start acclaunch on the others with the "
                "same flags"});
  CHECK(world.num_jobs() == 0);
}

TEST_CASE_FIXTURE(Elastic, "the limit does not end a last call") {
  times.join = 10s;
  enter({1, 2});
  world.wait(30s, {1, 2});
  formed({1, 2});
}

TEST_CASE_FIXTURE(Elastic, "the limit counts anew from where there are too few") {
  times.join = 3s;
  times.heartbeat = 60s;
  enter({1, 2});
  world.wait(2s);
  world.lose(2);
  world.forget_what_was_heard();
  world.wait(2900ms);
  check_no_more({1});
  world.wait(100ms);
  CHECK(contains(world.heard<Dropped>(1).reason, "1 of 2 to 4 machines came within 3 s"));
}

TEST_CASE_FIXTURE(Elastic, "no beat is needed for a deadline to be met") {
  times.heartbeat = 60s;
  times.last_call = 3s;
  times.settle = 7s;
  enter({1, 2});
  world.wait(3s);
  formed({1, 2});
  world.say(1, End{{.cause = Cause::other}});
  all_heard<Ends>({1, 2});
  world.wait(7s);
  CHECK(all_heard<Settled>({1, 2}).settlement.next == Next::finished);
}

TEST_CASE_FIXTURE(Elastic, "the next round waits for those of the last one, not for a last call") {
  run_few({1, 2, 3});
  enter({4});
  CHECK(world.heard<Ends>(1).end ==
        AttemptEnd{-1, "host4", 0, true, Cause::membership,
                   "machine host4 has joined: starting again with 4 machines"});
  report({1, 2, 3});
  rejoin({1, 2});
  world.lose(4);
  world.wait(5s, {1, 2, 3});
  world.forget_what_was_heard();
  rejoin({3});
  CHECK(formed({1, 2, 3}).round == 1);
}

TEST_CASE_FIXTURE(Elastic, "who does not join again keeps its place until its limit") {
  terms.max_restarts = 1;
  run_few({1, 2, 3});
  world.say(1, End{{.restarts = true}});
  report({1, 2, 3});
  world.heard<Ends>(1);
  world.heard<Ends>(2);
  world.heard<Ends>(3);
  CHECK(all_heard<Settled>({1, 2, 3}).settlement.next == Next::next_round);
  rejoin({1, 2});
  world.wait(59s, {1, 2, 3});
  world.forget_what_was_heard();
  world.wait(1s, {1, 2, 3});
  CHECK(world.heard<Dropped>(3) ==
        Dropped{Why::timeout, "it has not joined the next round within 60 s"});
  CHECK(formed({1, 2}).restart_count == 1);
}

// Machines too many, and machines that come later.

TEST_CASE_FIXTURE(Fixture, "a machine too many waits without limit and replaces one that is lost") {
  run({1, 2});
  enter({3});
  world.heard<Welcome>(3);
  CHECK(world.heard<Waiting>(3).text ==
        "waiting for a place: all 2 machines of the job are running");
  world.wait(1h, {1, 2, 3});
  check_no_more({1, 2});
  world.forget_what_was_heard();
  world.lose(1);
  CHECK(world.heard<Ends>(2).end == AttemptEnd{0, "host1", 1, true, Cause::membership,
                                               "machine 0 (host1) is lost: its connection has "
                                               "ended"});
  report({2});
  CHECK(world.heard<Settled>(2).settlement.next == Next::next_round);
  world.wait(59s, {2, 3});
  rejoin({2});
  CHECK(formed({2, 3}).restart_count == 0);
  report({2, 3});
  CHECK(all_heard<Settled>({2, 3}).settlement == Settlement{});
}

TEST_CASE_FIXTURE(Fixture, "machines of the last round go before those that wait") {
  terms.max_restarts = 1;
  run({2, 3});
  enter({1});
  world.say(3, End{{.exit_status = 9, .restarts = true}});
  report({2, 3});
  rejoin({3});  // with agent 1 there would be two
  world.forget_what_was_heard();
  rejoin({2});
  CHECK(formed({2, 3}).restart_count == 1);
  CHECK(contains(world.heard<Waiting>(1).text, "waiting for a place"));
  report({2, 3});
  CHECK(world.heard<Dropped>(1) == Dropped{Why::over, "the job 'run' has ended"});
}

TEST_CASE_FIXTURE(Elastic, "machines that come at once start one new round") {
  run_few({1, 2});
  enter({3, 4, 5});
  CHECK(all_heard<Ends>({1, 2}).end.reason ==
        "machine host3 has joined: starting again with 3 machines");
  check_no_more({1, 2});
  report({1, 2});
  rejoin({1, 2});
  formed({1, 2, 3, 4});
  CHECK(world.heard<Welcome>(5) == Welcome{1s, 5s});
}

TEST_CASE_FIXTURE(Elastic, "where workers have succeeded nothing starts again for a new machine") {
  run_few({1, 2});
  report({1});
  enter({3});
  check_no_more({1, 2});
  world.heard<Welcome>(3);
  CHECK(world.heard<Waiting>(3).text == "waiting for the next round: machines are running");
  report({2});
  CHECK(all_heard<Settled>({1, 2}).settlement == Settlement{});
  CHECK(world.heard<Dropped>(3).why == Why::over);
}

TEST_CASE_FIXTURE(Fixture, "ten thousand machines form a round") {
  terms = {.num_machines = 10'000, .min_machines = 10'000};
  Ids agents(10'000);
  std::iota(agents.begin(), agents.end(), 10'000);
  Jobs jobs;
  Outbox out;
  const std::clock_t begin = std::clock();
  for (const AgentId agent : agents) {
    out.clear();
    jobs.receive(agent, introduction(agent), Time(1h), out);
  }
  const double took = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  CHECK(out.size() == agents.size() + 1);
  std::size_t bytes = 0;
  for (const Letter& letter : out) {
    bytes += letter.frame->size();
  }
  CHECK(bytes < 100 * agents.size());
  MESSAGE("10000 machines: " << took << " s of CPU time, " << bytes << " bytes");
}

// Machines that are lost.

TEST_CASE_FIXTURE(Elastic, "who is silent for too long is lost") {
  run_few({1, 2, 3});
  world.wait(4900ms, {1, 3});
  check_no_more({1, 2, 3});
  world.wait(100ms, {1, 3});
  CHECK(world.heard<Dropped>(2) == Dropped{Why::lost, "the server heard nothing of it for 5 s"});
  CHECK(all_heard<Ends>({1, 3}).end.reason ==
        "machine 1 (host2) is lost: nothing was heard of it for 5 s");
  report({1, 3});
  rejoin({1, 3});
  formed({1, 3});
}

TEST_CASE_FIXTURE(Elastic, "what fails because another machine is lost cancels nothing") {
  run_few({1, 2, 3});
  world.lose(2);
  CHECK(all_heard<Ends>({1, 3}).end.restarts);
  world.say(1, End{{.exit_status = 9, .restarts = true, .reason = "rank 0 lost its peer"}});
  report({1, 3}, true);
  CHECK(all_heard<Settled>({1, 3}).settlement.next == Next::next_round);
  world.say(3, End{{.exit_status = 9, .restarts = true, .reason = "late"}});
  rejoin({1, 3});
  CHECK(formed({1, 3}).restart_count == 0);
}

TEST_CASE_FIXTURE(Elastic, "too few survivors wait for others") {
  run_few({1, 2});
  world.say(2, Leave{});
  CHECK(world.heard<Ends>(1).end.reason == "machine 1 (host2) is lost: its launcher has ended");
  report({1});
  rejoin({1});
  world.wait(40s, {1});
  enter({5});
  world.wait(29s, {1, 5});
  world.forget_what_was_heard();
  world.wait(1s, {1, 5});
  CHECK(formed({1, 5}).restart_count == 0);
}

TEST_CASE_FIXTURE(Fixture,
                  "a lost machine that nobody replaces uses a restart up, then ends the job") {
  terms.max_restarts = 1;
  run({1, 2});
  world.lose(2);
  CHECK(world.heard<Ends>(1).end.restarts);
  report({1});
  rejoin({1});
  world.forget_what_was_heard();
  enter({3});
  CHECK(formed({1, 3}).restart_count == 1);
  world.lose(3);
  CHECK(world.heard<Ends>(1).end ==
        AttemptEnd{1, "host3", 1, false, Cause::other,
                   "the connection to machine 1 (host3) is lost: its connection has ended"});
  report({1});
  CHECK(world.heard<Settled>(1).settlement.next == Next::finished);
}

TEST_CASE_FIXTURE(Elastic, "nobody waits for the report of a lost machine") {
  run_few({1, 2, 3});
  world.say(1, End{{.restarts = true}});
  CHECK_FALSE(all_heard<Ends>({1, 2}).end.restarts);
  world.lose(3);  // which explains why workers of others have failed
  const AttemptEnd loss{
      2,    "host3",           1,
      true, Cause::membership, "machine 2 (host3) is lost: its connection has ended"};
  CHECK(all_heard<Ends>({1, 2}).end == loss);
  report({1, 2}, true);
  const auto settlement = all_heard<Settled>({1, 2}).settlement;
  CHECK(settlement.end == loss);
  CHECK(settlement.next == Next::next_round);
  CHECK(settlement.machines == std::vector<MachineWord>{{0, "host1", "report of 1"},
                                                        {1, "host2", "report of 2"},
                                                        {2, "host3", ""}});
}

TEST_CASE_FIXTURE(Elastic, "a machine whose workers have succeeded may go, others may not") {
  run_few({1, 2, 3});
  report({1, 2});
  world.lose(1);
  check_no_more({2, 3});
  SUBCASE("the rest succeeds") {
    report({3});
    CHECK(all_heard<Settled>({2, 3}).settlement == Settlement{});
  }
  SUBCASE("another one is lost") {
    world.lose(3);
    CHECK(world.heard<Ends>(2).end.cause == Cause::membership);
    CHECK(world.heard<Settled>(2).settlement.next == Next::next_round);
  }
}

TEST_CASE_FIXTURE(Elastic, "a server that stood still accuses nobody") {
  run_few({1, 2});
  world.stall(3h);
  check_no_more({1, 2});
  world.wait(4s);
  check_no_more({1, 2});
  world.wait(1s, {1});
  CHECK(world.heard<Dropped>(2).why == Why::lost);
}

// How rounds end.

TEST_CASE_FIXTURE(Fixture, "the first end is everybody's end") {
  run({1, 2});
  world.say(2, End{{7, "elsewhere", 137, true, Cause::worker, "rank 3 on host2\nwas killed"}});
  world.say(1, End{{0, "", 1, true, Cause::worker, "rank 0 lost its peer"}});
  const AttemptEnd end{1, "host2", 137, false, Cause::worker, "rank 3 on host2 was killed"};
  CHECK(all_heard<Ends>({1, 2}).end == end);
  report({1, 2}, true);
  const auto settlement = all_heard<Settled>({1, 2}).settlement;
  CHECK(settlement.end == end);
  CHECK(settlement.machines.size() == 2);
  check_no_more({1, 2});
}

TEST_CASE_FIXTURE(Fixture, "workers that fail are started again while restarts are left") {
  terms.max_restarts = 2;
  run({1, 2});
  for (int restarts = 0; restarts < 3; ++restarts) {
    world.say(1, End{{.exit_status = 9, .restarts = true, .reason = "rank 0 failed"}});
    CHECK(all_heard<Ends>({1, 2}).end.restarts == (restarts < 2));
    report({1, 2}, true);
    CHECK(all_heard<Settled>({1, 2}).settlement.next ==
          (restarts < 2 ? Next::next_round : Next::finished));
    if (restarts < 2) {
      rejoin({1, 2});
      const Round round = formed({1, 2});
      CHECK(round.round == restarts + 1);
      CHECK(round.restart_count == restarts + 1);
    }
  }
}

TEST_CASE_FIXTURE(Fixture, "only failures of workers are started again") {
  terms.max_restarts = 1;
  for (const Cause cause : {Cause::stop, Cause::other, Cause::membership}) {
    run({1, 2});
    world.say(1, End{{.restarts = true, .cause = cause}});
    CHECK_FALSE(all_heard<Ends>({1, 2}).end.restarts);
    report({1, 2});
    all_heard<Settled>({1, 2});
    world.lose(1);
    world.lose(2);
  }
}

TEST_CASE_FIXTURE(Fixture, "a report of failure ends the attempt by itself") {
  run({1, 2});
  report({2}, true);
  CHECK(all_heard<Ends>({1, 2}).end ==
        AttemptEnd{1, "host2", 1, false, Cause::worker, "the workers of machine 1 (host2) failed"});
  report({1});
  CHECK(all_heard<Settled>({1, 2}).settlement.machines.size() == 2);
}

TEST_CASE_FIXTURE(Fixture, "the end of the job cancels a restart") {
  terms.max_restarts = 1;
  run({1, 2});
  const AttemptEnd stop{1, "host2", 143, false, Cause::stop, "stopped by SIGTERM"};
  world.say(1, End{{.exit_status = 9, .restarts = true, .reason = "rank 0 failed"}});
  CHECK(all_heard<Ends>({1, 2}).end.restarts);
  SUBCASE("while workers end") {
    report({2}, true);
    world.say(2, End{stop});
    const auto end = all_heard<Ends>({1, 2}).end;  // the first reason stays
    CHECK(end.reason == "rank 0 failed");
    CHECK_FALSE(end.restarts);
    report({1}, true);
    const auto settlement = all_heard<Settled>({1, 2}).settlement;
    CHECK(settlement.end == end);
    CHECK(settlement.next == Next::finished);
  }
  SUBCASE("while machines join again") {
    report({1, 2}, true);
    CHECK(all_heard<Settled>({1, 2}).settlement.next == Next::next_round);
    rejoin({1});
    world.heard<Waiting>(1);
    world.say(2, End{stop});
    CHECK(all_heard<Settled>({1, 2}).settlement == Settlement{stop, {}, Next::finished});
    rejoin({2});  // was on its way
    world.say(1, End{stop});
    world.say(1, Insist{});
    check_no_more({1, 2});
  }
}

TEST_CASE_FIXTURE(Elastic, "a machine that is stopped leaves the others running") {
  run_few({1, 2, 3});
  const AttemptEnd stop{1, "host2", 143, false, Cause::stop, "stopped by SIGTERM"};
  world.say(2, End{stop});
  CHECK(world.heard<Ends>(2).end == stop);
  CHECK(all_heard<Ends>({1, 3}).end ==
        AttemptEnd{1, "host2", 143, true, Cause::membership,
                   "machine 1 (host2) has left: stopped by SIGTERM"});
  report({1, 3});
  check_no_more({1, 3});
  report({2});
  CHECK(world.heard<Settled>(2).settlement ==
        Settlement{stop, {{1, "host2", "report of 2"}}, Next::finished});
  CHECK(all_heard<Settled>({1, 3}).settlement.next == Next::next_round);
  rejoin({1, 3});
  formed({1, 3});
  world.say(2, End{stop});
  check_no_more({1, 2, 3});
  world.say(3, End{stop});  // the minimum is not left
  CHECK(all_heard<Ends>({1, 3}).end.cause == Cause::stop);
  report({1, 3});
  CHECK(all_heard<Settled>({1, 3}).settlement.next == Next::finished);
}

TEST_CASE_FIXTURE(Fixture, "insistence reaches the others, once") {
  terms.max_restarts = 1;
  run({1, 2});
  enter({3});
  world.forget_what_was_heard();
  world.say(1, Insist{});
  world.heard<Insisted>(2);
  world.say(2, Insist{});
  world.say(3, Insist{});
  check_no_more({1, 2, 3});
  world.say(1, End{{.exit_status = 9, .restarts = true}});
  report({1, 2});
  rejoin({1, 2});
  formed({1, 2});
  world.say(2, Insist{});
  world.heard<Insisted>(1);
  check_no_more({1, 2});
}

TEST_CASE_FIXTURE(Fixture, "slow machines are not waited for, and not started again") {
  terms.max_restarts = 1;
  run({1, 2});
  world.say(1, End{{.exit_status = 9, .restarts = true}});
  report({1});
  CHECK(all_heard<Ends>({1, 2}).end.restarts);
  world.wait(94s, {1, 2});
  check_no_more({1, 2});
  world.wait(1s, {1, 2});
  const auto settlement = all_heard<Settled>({1, 2}).settlement;
  CHECK(settlement.end ==
        AttemptEnd{1, "host2", 1, false, Cause::other,
                   "the workers of machine 1 (host2) did not end for the restart"});
  CHECK(settlement.machines ==
        std::vector<MachineWord>{{0, "host1", "report of 1"}, {1, "host2", ""}});
  report({2});
  check_no_more({1, 2});
}

TEST_CASE_FIXTURE(Fixture, "of many reports those of failures are heard, as far as they fit") {
  terms = {.num_machines = 2000, .min_machines = 2000};
  Ids agents(2000);
  for (std::size_t i = 0; i < agents.size(); ++i) {
    agents[i] = i;
  }
  run(agents);
  for (const AgentId agent : agents) {
    world.say(agent, Report{agent % 100 == 99, std::string(4000, 'x')});
  }
  world.heard<Ends>(0);
  const auto machines = world.heard<Settled>(0).settlement.machines;
  std::size_t bytes = 0;
  std::size_t failed = 0;
  for (const MachineWord& word : machines) {
    bytes += word.report.size();
    failed += word.report.empty() ? 0 : 1;
  }
  CHECK(bytes <= 64 << 10);
  CHECK(failed == 16);
  CHECK(std::ranges::count(machines, 99, &MachineWord::machine_rank) == 1);
}

// Jobs.

TEST_CASE_FIXTURE(Elastic, "an elastic job that is over refuses late comers for a while") {
  run_few({1, 2});
  report({1, 2});
  world.lose(1);
  world.lose(2);
  world.wait(7s);
  enter({3});
  CHECK(
      world.heard<Dropped>(3) ==
      Dropped{Why::over, "the job 'run' has ended 7 s ago; give a new one a --rdzv_id of its own"});
  world.wait(23s);
  CHECK(world.num_jobs() == 0);
  CHECK_FALSE(world.has_deadline());
  enter({4});
  world.heard<Welcome>(4);
}

TEST_CASE_FIXTURE(Fixture,
                  "the next job may have the same name, though the last one still closes") {
  run({1, 2});
  report({1, 2});
  all_heard<Settled>({1, 2});
  enter({3, 4});
  CHECK(formed({3, 4}).round == 0);
  CHECK(world.num_jobs() == 2);
  world.say(1, Beat{});
  world.lose(1);
  world.lose(2);
  CHECK(world.num_jobs() == 1);
  report({3, 4});
  CHECK(all_heard<Settled>({3, 4}).settlement == Settlement{});
}

TEST_CASE_FIXTURE(Fixture, "an agent of a job that is over is let go when it is silent") {
  run({1, 2});
  report({1, 2});
  all_heard<Settled>({1, 2});
  world.lose(1);
  world.wait(5s);
  CHECK(world.heard<Dropped>(2).why == Why::lost);
  CHECK(world.num_jobs() == 0);
}

TEST_CASE_FIXTURE(Fixture, "jobs do not know of each other") {
  for (AgentId agent = 0; agent < 6; ++agent) {
    Enter enter = introduction(agent);
    enter.run_id = "run" + std::to_string(agent / 2);
    world.say(agent, enter);
  }
  CHECK(world.num_jobs() == 3);
  formed({0, 1});
  formed({2, 3});
  formed({4, 5});
  world.lose(2);
  CHECK_FALSE(world.heard<Ends>(3).end.restarts);
  check_no_more({0, 1, 4, 5});
}

}  // namespace
}  // namespace acc::rendezvous::rounds
