// SPDX-License-Identifier: Apache-2.0
#include "rounds_fixture.hpp"

namespace acc::rendezvous::rounds {
namespace {

using acc::test::contains;
using acc::test::error_of;
using test::Fixture;
using test::Static;
using Cause = AttemptEnd::Cause;
using Next = RoundResult::Next;
using Why = Dropped::Why;
using namespace std::chrono_literals;

TEST_CASE_FIXTURE(Fixture, "each role has ranks of its own, in order of the machine ranks") {
  terms = {.num_machines = 4, .min_machines = 3};
  const std::vector<std::pair<std::string, int>> machines = {
      {"trainer", 2}, {"reader", 1}, {"trainer", 3}, {"reader", 2}};
  const auto enter_as = [&](AgentId agent) {
    Enter enter = introduction(agent);
    std::tie(enter.machine.role, enter.machine.local_world_size) = machines[agent - 1];
    enter.machine.machine_rank = static_cast<int>(agent);
    world.say(agent, enter);
  };
  const auto check = [&](AgentId agent, int first, int size) {
    CAPTURE(agent);
    std::optional<Round> round;
    while (auto message = next(agent)) {
      if (const auto* heard = std::get_if<Formed>(&*message)) {
        round = heard->round;
      }
    }
    REQUIRE(round);
    CHECK(round->first_role_rank == first);
    CHECK(round->role_world_size == size);
  };
  for (const AgentId agent : {3, 1, 2, 4}) {
    enter_as(agent);
  }
  check(1, 0, 5);
  check(2, 0, 3);
  check(3, 2, 5);
  check(4, 1, 3);
  world.lose(1);  // the next round counts those that are left
  report({2, 3, 4}, true);
  rejoin({2, 3, 4});
  world.wait(times.last_call, {2, 3, 4});
  check(2, 0, 3);
  check(3, 0, 3);
  check(4, 1, 3);
}

TEST_CASE_FIXTURE(Fixture, "a round is formed when all machines have joined, in any order") {
  enter({2});
  CHECK(world.heard<Welcome>(2) == Welcome{1s, 5s});
  CHECK(world.heard<Waiting>(2).text == "waiting for machines: 1 of 2 are here");
  enter({1});
  CHECK(world.heard<Formed>(2).round == Round{0, 0, 1, {2, 2}, "10.0.0.1", 2001, secret(1), 2, 4});
  CHECK(world.heard<Welcome>(1) == Welcome{1s, 5s});
  CHECK(world.heard<Formed>(1).round == Round{0, 0, 0, {2, 2}, "10.0.0.1", 2001, secret(1), 0, 4});
  report({1, 2});
  CHECK(all_heard<Settled>({1, 2}).round_result == RoundResult{});
  check_no_more({1, 2});
  world.lose(1);
  CHECK(world.num_jobs() == 1);
  world.lose(2);
  CHECK(world.num_jobs() == 0);
  CHECK_FALSE(world.has_deadline());
}

// Admission of machines.

TEST_CASE_FIXTURE(Fixture, "all machines are refused if their settings differ") {
  struct Case {
    Terms other;
    const char* reason;
  };
  const Case cases[] = {
      {{.num_machines = 3, .min_machines = 2},
       "--num_machines 3, machine host1 (pid 1001) with --num_machines 2"},
      {{.num_machines = 2, .min_machines = 1},
       "a minimum number of machines of 1, machine host1 (pid 1001) with a minimum number of "
       "machines of 2"},
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

TEST_CASE_FIXTURE(Fixture, "static and c10d machines cannot form one job") {
  enter({1});
  Enter other = introduction(2);
  other.terms.ranks_are_given = true;
  other.machine.machine_rank = 0;
  world.say(2, other);
  CHECK(world.heard<Dropped>(2).reason ==
        "machine 0 (host2, pid 1002) was started with --rdzv_backend static, machine host1 (pid "
        "1001) with --rdzv_backend c10d: start all machines with the same");
}

TEST_CASE_FIXTURE(Fixture, "after the first round only the machine that differs is refused") {
  run({1, 2});
  Enter other = introduction(3);
  other.terms.num_machines = 3;
  world.say(3, other);
  CHECK(world.heard<Dropped>(3).why == Why::config);
  check_no_more({1, 2, 3});
  report({1, 2});
  CHECK(all_heard<Settled>({1, 2}).round_result == RoundResult{});
}

TEST_CASE_FIXTURE(Fixture, "a wrong total of processes is refused on every machine") {
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

TEST_CASE_FIXTURE(Fixture, "a wrong first message is a violation and creates no job") {
  const auto refuse = [&](const AgentMessage& message) {
    return contains(error_of([&] { world.say(7, message); }), "protocol: ");
  };
  CHECK(refuse(Beat{}));
  CHECK(refuse(Leave{}));
  CHECK(world.num_jobs() == 0);
}

TEST_CASE_FIXTURE(Fixture, "a message that no race explains is a violation and changes nothing") {
  enter({1});
  CHECK(contains(error_of([&] { enter({1}); }), "protocol: an agent sent a second Enter message"));
  CHECK(contains(error_of([&] { rejoin({1}); }), "protocol: "));
  CHECK(contains(error_of([&] { report({1}); }), "protocol: "));
  enter({2});
  formed({1, 2});
  CHECK(contains(error_of([&] { rejoin({1}); }), "protocol: "));
  report({1});
  CHECK(contains(error_of([&] { report({1}); }), "protocol: "));
  report({2});
  CHECK(all_heard<Settled>({1, 2}).round_result == RoundResult{});
}

// Given ranks.

TEST_CASE_FIXTURE(Static, "given ranks are kept, in any order of arrival") {
  enter({2});
  world.heard<Welcome>(2);
  CHECK(world.heard<Waiting>(2).text ==
        "waiting for machine ranks 0,1; 1 of 3 machines are here: machine rank 2");
  world.wait(10s, {2});
  CHECK(world.heard<Waiting>(2).text ==
        "waiting for machine ranks 0,1; 1 of 3 machines are here: machine rank 2");
  enter({0});
  world.heard<Welcome>(0);
  CHECK(world.heard<Waiting>(0).text ==
        "waiting for machine rank 1; 2 of 3 machines are here: machine ranks 0,2");
  enter({1});
  const Round round = formed({0, 1, 2});
  CHECK(round.store_host == "10.0.0.0");
  CHECK(round.local_world_sizes == std::vector<int>{2, 2, 2});
}

TEST_CASE_FIXTURE(Static, "an invalid rank is refused") {
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

TEST_CASE_FIXTURE(Static, "a rank that two machines claim is refused on all machines") {
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
  world.wait(5s);
  CHECK(world.num_jobs() == 0);
}

TEST_CASE_FIXTURE(Static, "machines that join after a refusal are sent it, too") {
  enter({0});
  world.forget_what_was_heard();
  Enter other = introduction(1);
  other.terms.num_processes = 5;
  world.say(9, other);
  const auto reason = world.heard<Dropped>(0).reason;
  CHECK(contains(reason, "with --num_processes 5"));
  world.wait(29s);
  enter({2});
  CHECK(world.heard<Dropped>(2) == Dropped{Why::config, reason});
  CHECK(world.num_jobs() == 0);  // all machines have been told
}

TEST_CASE_FIXTURE(Static,
                  "a refusal ends after the close time, or when a refused machine restarts") {
  Enter other = introduction(1);
  other.terms.num_processes = 5;
  const auto refuse = [&](AgentId first, AgentId second) {
    world.say(first, introduction(0));
    world.say(second, other);
    world.forget_what_was_heard();
  };
  refuse(10, 11);
  CHECK(world.num_jobs() == 1);
  world.wait(30s);
  CHECK(world.num_jobs() == 0);
  refuse(12, 13);
  Enter again = introduction(0);
  again.machine.pid = 77;
  world.say(14, again);
  world.heard<Welcome>(14);
}

TEST_CASE_FIXTURE(Static, "machines that are started again after a refusal form a new job") {
  enter({0, 1});
  world.say(1, End{{.cause = Cause::stop}});  // stays connected until the end of the test
  Enter other = introduction(1);
  other.terms.num_processes = 5;
  world.say(9, other);
  CHECK(contains(world.heard<Dropped>(9).reason, "with --num_processes 5"));
  SUBCASE("all machines were told") {
    world.say(10, introduction(2));
    CHECK(world.heard<Dropped>(10).why == Why::config);
  }
  SUBCASE("after the close time") {
    world.wait(30s, {1});
  }
  CHECK(world.num_jobs() == 1);
  terms.num_processes = 6;  // not the number that the first machine of the refused job had
  for (const AgentId agent : {20, 21, 22}) {
    Enter again = introduction(agent);
    again.machine.machine_rank = static_cast<int>(agent) - 20;
    world.say(agent, again);
  }
  formed({20, 21, 22});
}

TEST_CASE_FIXTURE(Fixture, "the agreed settings must be equal on all machines") {
  const std::string x(200, 'x');
  const struct {
    Agreed founder, newcomer;
    std::string found;
  } cases[] = {
      {{{"the program", "a"}},
       {{"the program", "b"}},
       "machine host1 (pid 1001) was started with the program b, machine host0 (pid 1000) with the "
       "program a: start all machines with the same"},
      {{{"--a", "1"}, {"--b", "2"}},
       {{"--a", "1"}},
       "machine host1 (pid 1001) was started without --b, machine host0 (pid 1000) with --b 2"},
      {{}, {{"--a", ""}}, "was started with --a \"\", machine host0 (pid 1000) without --a: start"},
      {{{"--a", x + "1\n" + x}},
       {{"--a", x + "2" + x}},
       "with --a ..." + std::string(20, 'x') + "2" + std::string(59, 'x') +
           "..., machine host0 "
           "(pid 1000) with --a ..." +
           std::string(20, 'x') + "1 " + std::string(58, 'x') + "...:"},
  };
  AgentId id = 100;
  for (const auto& [founder, newcomer, found] : cases) {
    CAPTURE(found);
    Enter first = introduction(0);
    Enter second = introduction(1);
    first.terms.agreed = founder;
    second.terms.agreed = newcomer;
    world.say(id, first);
    world.heard<Welcome>(id);
    world.heard<Waiting>(id);
    world.say(id + 1, second);
    const auto dropped = all_heard<Dropped>({id, id + 1});
    CHECK(dropped.why == Why::config);
    CHECK_MESSAGE(contains(dropped.reason, found), dropped.reason);
    id += 2;
  }
}

TEST_CASE_FIXTURE(Fixture, "the order of the agreed settings does not matter") {
  Enter first = introduction(0);
  Enter second = introduction(1);
  first.terms.agreed = {{"--a", "1"}, {"--b", "2"}};
  second.terms.agreed = {{"--b", "2"}, {"--a", "1"}};
  world.say(0, first);
  world.say(1, second);
  formed({0, 1});
}

TEST_CASE_FIXTURE(Static, "an agent that only asks takes no place, and detects a conflict") {
  Enter asking = introduction(0);
  asking.only_asks = true;
  world.say(8, asking);
  CHECK(world.heard<Dropped>(8).why == Why::lost);
  CHECK(world.num_jobs() == 0);
  enter({0, 1});
  world.forget_what_was_heard();
  world.say(9, asking);  // the same machine
  CHECK(world.heard<Dropped>(9).why == Why::lost);
  check_no_more({0, 1});
  asking.machine.host = "twin";
  world.say(10, asking);
  const auto dropped = all_heard<Dropped>({0, 1, 10});
  CHECK(dropped.why == Why::config);
  CHECK(contains(dropped.reason, "--machine_rank 0 is claimed twice"));
}

TEST_CASE_FIXTURE(Static, "a machine that waits at the server of another job is told so") {
  Enter server = introduction(0);
  server.machine.serves = true;
  world.say(0, server);
  world.forget_what_was_heard();
  Enter lost = introduction(1);
  lost.run_id = "other";
  world.say(1, lost);
  world.heard<Welcome>(1);
  CHECK(world.heard<Waiting>(1).text ==
        "waiting for machine ranks 0,2 for the job 'other', though machine 0 (host0, pid 1000) "
        "serves the job 'run'; 1 of 3 machines are here: machine rank 1");
  world.wait(5s, {0, 1});
  CHECK(world.heard<Dropped>(1) ==
        Dropped{Why::config,
                "machine 0 (host0, pid 1000) serves the job 'run' there, not the job 'other': "
                "choose another --main_process_port for one of them, or use the same run id if "
                "they are one job"});
  Enter asking = introduction(0);
  asking.run_id = "other";
  asking.only_asks = true;
  world.say(2, asking);
  CHECK(world.heard<Dropped>(2).why == Why::config);
}

TEST_CASE_FIXTURE(Static, "an agent that reconnects replaces its old connection") {
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

TEST_CASE_FIXTURE(Static, "an end before the first round concerns one machine only") {
  enter({0, 1});
  world.forget_what_was_heard();
  const AttemptEnd stop{-1, "host1", 143, false, Cause::stop, "stopped by SIGTERM"};
  world.say(1, End{stop});
  CHECK(world.heard<Settled>(1).round_result == RoundResult{stop, {}, Next::finished});
  check_no_more({0});
  world.say(1, Leave{});
  CHECK(world.shown_hosts() == std::vector<std::string>{"host0"});
  enter({2});
  world.say(9, introduction(1));
  formed({0, 9, 2});
}

TEST_CASE_FIXTURE(Static, "a late machine is told which machine has its rank") {
  run({0, 1, 2});
  world.say(9, introduction(1));
  CHECK(world.heard<Dropped>(9).reason ==
        "the job has already started with machine 1 (host1, pid 1001)");
}

TEST_CASE_FIXTURE(Static, "the join timeout names the missing machines") {
  enter({1});
  world.wait(20s, {1});
  times.join = 500ms;
  enter({0});
  world.forget_what_was_heard();
  world.wait(500ms, {0, 1});
  CHECK(world.heard<Dropped>(0) ==
        Dropped{Why::timeout,
                "timeout: machine rank 2 did not join within 0.5 s; 2 of 3 machines are here: "
                "start acclaunch there with the same flags and --machine_rank 2"});
  check_no_more({1});
  world.wait(40s, {1});
  while (const auto message = next(1)) {
    if (const auto* dropped = std::get_if<Dropped>(&*message)) {
      CHECK(contains(dropped->reason, "timeout: machine rank 2 did not join within 60 s"));
    }
  }
  CHECK(world.num_jobs() == 0);
}

TEST_CASE_FIXTURE(Static, "a lost machine ends the job") {
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
  CHECK(all_heard<Settled>({0, 2}).round_result ==
        RoundResult{end,
                    {{0, "host0", "report of 0"}, {1, "host1", ""}, {2, "host2", "report of 2"}},
                    Next::finished});
}

TEST_CASE_FIXTURE(Static, "a machine that is lost during a restart ends the job, at any moment") {
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
  const auto settled = all_heard<Settled>({0, 2}).round_result;
  CHECK(settled.next == Next::finished);
  CHECK(contains(settled.end->reason, "the connection to machine 1 (host1) is lost"));
}

// Order of ranks.

TEST_CASE_FIXTURE(Fixture,
                  "ranks are ordered by the given rank, the host, the address, the arrival") {
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

TEST_CASE_FIXTURE(Fixture, "machines keep their ranks, and a new one gets that of a lost one") {
  terms = {.num_machines = 4, .min_machines = 2};
  enter({2, 3, 4});
  world.wait(30s, {2, 3, 4});
  formed({2, 3, 4});
  world.lose(2);
  report({3, 4});
  enter({5});
  rejoin({4, 3});
  const Round round = formed({5, 3, 4});
  CHECK(round.round == 1);
  CHECK(round.restart_count == 0);
  CHECK(round.store_host == "10.0.0.5");
  CHECK(round.store_port == 2005);
  world.lose(3);
  report({5, 4});
  rejoin({4, 5});
  formed({5, 4});  // fewer machines: in the order of their ranks
}

}  // namespace
}  // namespace acc::rendezvous::rounds
