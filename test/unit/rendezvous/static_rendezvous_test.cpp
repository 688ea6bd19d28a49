#include "acc/rendezvous/static_rendezvous.hpp"

#include "support.hpp"

#include <sys/wait.h>
#include <unistd.h>

namespace acc::rendezvous {
namespace {

using boost::asio::awaitable;
using test::contains;
using test::Coroutines;
using test::error_of;
using test::kSoon;
using Milliseconds = AsyncClient::Milliseconds;
using Machines = std::vector<Machine>;
using namespace std::chrono_literals;

/// A launcher of one machine, as far as the rendezvous sees it.
struct Launcher {
  Launcher(Coroutines& run, std::uint16_t server_port, int machine_rank)
      : client(run.io.get_executor()), port(server_port) {
    me.machine_rank = machine_rank;
    me.host = "host" + std::to_string(machine_rank);
    me.address = "10.0.0." + std::to_string(machine_rank);
    me.local_world_size = 2;
    me.pid = 1000 + machine_rank;
  }

  awaitable<Machines> start() {
    co_await client.connect("127.0.0.1", port, kSoon);
    co_return co_await join(client, "run", me, num_machines, num_processes, timeout, progress);
  }

  AsyncClient client;
  std::uint16_t port;
  Machine me;
  int num_machines = 2;
  int num_processes = 4;
  Milliseconds timeout = kSoon;
  AsyncClient::Progress progress;
};

struct Fixture {
  Coroutines run;
  Server server{run.io, "127.0.0.1", 0};

  Launcher launcher(int machine_rank) { return {run, server.port(), machine_rank}; }
};

TEST_CASE_FIXTURE(Fixture, "all machines get the same list, whoever came first") {
  std::vector<Launcher> launchers;
  for (const int rank : {2, 0, 1}) {
    launchers.push_back(launcher(rank));
    launchers.back().num_machines = 3;
  }
  std::vector<std::shared_ptr<Coroutines::Outcome<Machines>>> outcomes;
  for (Launcher& each : launchers) {
    outcomes.push_back(run.spawn(each.start()));
  }
  run.run();
  for (const auto& outcome : outcomes) {
    CHECK(outcome->get() == Machines{launchers[1].me, launchers[2].me, launchers[0].me});
  }
}

TEST_CASE_FIXTURE(Fixture, "one machine alone waits for nobody") {
  Launcher only = launcher(0);
  only.num_machines = 1;
  const auto outcome = run.spawn(only.start());
  run.run();
  CHECK(outcome->get() == Machines{only.me});
}

TEST_CASE_FIXTURE(Fixture, "who waits hears who is missing") {
  Launcher first = launcher(0);
  Launcher second = launcher(1);
  std::shared_ptr<Coroutines::Outcome<Machines>> other;
  std::string told;
  first.progress = [&](const std::string& text) {
    told = text;
    other = run.spawn(second.start());
  };
  const auto outcome = run.spawn(first.start());
  run.run();
  CHECK(outcome->get() == other->get());
  CHECK(told == "waiting for machines 1 of 2 at 127.0.0.1:" + std::to_string(server.port()) +
                    ", 0 s of 30 s");
}

TEST_CASE_FIXTURE(Fixture, "the time limit names the missing machines") {
  Launcher second = launcher(1);
  second.num_machines = 4;
  second.timeout = 20ms;
  const auto outcome = run.spawn(second.start());
  run.run();
  const std::string error = error_of([&] { outcome->get(); });
  CAPTURE(error);
  CHECK(contains(error, "timeout: machines 0,2,3 of 4 did not come to 127.0.0.1:"));
  CHECK(contains(error, "--machine_rank 0 or 2 or 3"));
}

/// Lets `early` wait, then starts `late`; both must fail with `message`.
void check_refused(Fixture& fixture, Launcher& early, Launcher& late, const std::string& message) {
  std::shared_ptr<Coroutines::Outcome<Machines>> other;
  early.progress = [&](const std::string&) { other = fixture.run.spawn(late.start()); };
  const auto outcome = fixture.run.spawn(early.start());
  fixture.run.run();
  CHECK(error_of([&] { outcome->get(); }) == "config: " + message);
  CHECK(error_of([&] { other->get(); }) == "config: " + message);
}

TEST_CASE_FIXTURE(Fixture, "machines that disagree on num_machines are refused, all of them") {
  Launcher early = launcher(0);
  Launcher late = launcher(1);
  late.num_machines = 3;
  check_refused(*this, early, late,
                "machine 1 (host1, pid 1001) was started with --num_machines 3, machine 0 (host0, "
                "pid 1000) with --num_machines 2: start all machines with the same");
}

TEST_CASE_FIXTURE(Fixture, "machines that disagree on num_processes are refused, all of them") {
  Launcher early = launcher(1);
  Launcher late = launcher(0);
  late.num_processes = 8;
  check_refused(*this, early, late,
                "machine 0 (host0, pid 1000) was started with --num_processes 8, machine 1 (host1, "
                "pid 1001) with --num_processes 4: start all machines with the same");
}

TEST_CASE_FIXTURE(Fixture, "the others hear a refusal before machine 0 takes the store away") {
  Launcher early = launcher(1);
  Launcher late = launcher(0);
  late.num_processes = 8;
  std::shared_ptr<Coroutines::Outcome<Machines>> other;
  const auto start_and_stop = [&]() -> awaitable<Machines> {
    const std::shared_ptr<void> stop(nullptr, [&](void*) { server.stop(); });
    co_return co_await late.start();
  };
  early.progress = [&](const std::string&) { other = run.spawn(start_and_stop()); };
  const auto outcome = run.spawn(early.start());
  run.run();
  CHECK(contains(error_of([&] { outcome->get(); }), "config: machine 0 (host0, pid 1000) was"));
  CHECK(error_of([&] { outcome->get(); }) == error_of([&] { other->get(); }));
}

TEST_CASE_FIXTURE(Fixture, "a rank that two machines claim is refused") {
  Launcher early = launcher(1);
  Launcher late = launcher(1);
  late.me.host = "twin";
  late.me.pid = 7;
  check_refused(*this, early, late,
                "--machine_rank 1 is claimed twice: on host1 (pid 1001) and on twin (pid 7): give "
                "every machine its own");
}

TEST_CASE_FIXTURE(Fixture, "two live launchers of one host cannot share a rank") {
  Launcher early = launcher(1);
  Launcher late = launcher(1);
  early.me.pid = getpid();
  late.me.pid = getppid();
  check_refused(*this, early, late,
                "--machine_rank 1 is claimed twice: on host1 (pid " + std::to_string(getpid()) +
                    ") and on host1 (pid " + std::to_string(getppid()) +
                    "): give every machine its own");
}

TEST_CASE_FIXTURE(Fixture, "a launcher that died while it waited is replaced by its next start") {
  const pid_t child = fork();
  if (child == 0) {
    _exit(0);
  }
  REQUIRE(waitpid(child, nullptr, 0) == child);
  Launcher dead = launcher(1);
  dead.me.pid = child;
  dead.timeout = 1ms;
  const auto gave_up = run.spawn(dead.start());
  run.run();
  CHECK(contains(error_of([&] { gave_up->get(); }), "timeout: "));

  Launcher again = launcher(1);
  again.me.pid = getpid();
  Launcher first = launcher(0);
  const auto outcome = run.spawn(again.start());
  const auto other = run.spawn(first.start());
  run.run();
  CHECK(outcome->get() == Machines{first.me, again.me});
  CHECK(other->get() == outcome->get());
}

TEST_CASE_FIXTURE(Fixture, "a rank outside of the machines is refused") {
  Launcher wrong = launcher(2);
  const auto outcome = run.spawn(wrong.start());
  run.run();
  CHECK(error_of([&] { outcome->get(); }) ==
        "config: --machine_rank 2, expected 0 to 1 with --num_machines 2");
}

awaitable<JobEnd> wait_for_end(AsyncClient& client, std::uint16_t port) {
  co_await client.connect("127.0.0.1", port, kSoon);
  co_return co_await await_end(client, "run");
}

awaitable<JobEnd> end_job(AsyncClient& client, std::uint16_t port, JobEnd end) {
  co_await client.connect("127.0.0.1", port, kSoon);
  co_return co_await announce_end(client, "run", end);
}

TEST_CASE_FIXTURE(Fixture, "the first end is everybody's end") {
  std::vector<AsyncClient> clients;
  for (int i = 0; i < 3; ++i) {
    clients.emplace_back(run.io.get_executor());
  }
  const auto heard = run.spawn(wait_for_end(clients[0], server.port()));
  const auto first = run.spawn(
      end_job(clients[1], server.port(), {1, 137, "rank 3 on host1\nwas killed by signal 9"}));
  run.run();
  const auto second = run.spawn(end_job(clients[2], server.port(), {0, 1, "rank 0 lost its peer"}));
  run.run();
  const JobEnd expected{1, 137, "rank 3 on host1 was killed by signal 9"};
  CHECK(heard->get() == expected);
  CHECK(first->get() == expected);
  CHECK(second->get() == expected);
}

awaitable<bool> finish_at(AsyncClient& client, std::uint16_t port,
                          std::optional<Milliseconds> timeout) {
  co_await client.connect("127.0.0.1", port, kSoon);
  co_return co_await finish(client, "run", 2, timeout);
}

TEST_CASE_FIXTURE(Fixture, "machine 0 stops its server when all have finished, and they know it") {
  AsyncClient own(run.io.get_executor());
  AsyncClient other(run.io.get_executor());
  const auto stop_after = [this](AsyncClient& client) -> awaitable<bool> {
    const bool all = co_await finish_at(client, server.port(), std::nullopt);
    server.stop();
    co_return all;
  };
  const auto first = run.spawn(stop_after(own));
  const auto second = run.spawn(finish_at(other, server.port(), std::nullopt));
  run.run();
  CHECK(first->get());
  CHECK(second->get());
}

TEST_CASE_FIXTURE(Fixture, "a machine that only says that it has finished counts") {
  AsyncClient own(run.io.get_executor());
  AsyncClient other(run.io.get_executor());
  const auto said = run.spawn(finish_at(other, server.port(), 0ms));
  run.run();
  CHECK_FALSE(said->get());
  const auto waited = run.spawn(finish_at(own, server.port(), std::nullopt));
  run.run();
  CHECK(waited->get());
}

}  // namespace
}  // namespace acc::rendezvous
