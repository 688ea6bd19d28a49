#include "acc/rendezvous/meeting.hpp"

#include "records.hpp"
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
    me.pid_space = me.host;
  }

  awaitable<Machines> start() {
    co_await client.connect("127.0.0.1", port, kSoon);
    co_return co_await meet_by_rank(client, "run", me, terms, times, progress);
  }

  AsyncClient client;
  std::uint16_t port;
  Machine me;
  Terms terms{.num_machines = 2, .num_processes = 4};
  MeetingTimes times{.timeout = kSoon};
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
    launchers.back().terms = {.num_machines = 3};
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
  only.terms = {.num_machines = 1, .num_processes = 2};
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
  second.terms.num_machines = 4;
  second.times.timeout = 20ms;
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
  late.terms.num_machines = 3;
  check_refused(*this, early, late,
                "machine 1 (host1, pid 1001) was started with --num_machines 3, machine 0 (host0, "
                "pid 1000) with --num_machines 2: start all machines with the same");
}

TEST_CASE_FIXTURE(Fixture, "machines that disagree on num_processes are refused, all of them") {
  Launcher early = launcher(1);
  Launcher late = launcher(0);
  late.terms.num_processes = 8;
  check_refused(*this, early, late,
                "machine 0 (host0, pid 1000) was started with --num_processes 8, machine 1 (host1, "
                "pid 1001) with --num_processes 4: start all machines with the same");
}

TEST_CASE_FIXTURE(Fixture, "the others hear a refusal before machine 0 takes the store away") {
  Launcher early = launcher(1);
  Launcher late = launcher(0);
  late.terms.num_processes = 8;
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
  late.me.pid_space = "twin";
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
  dead.times.timeout = 1ms;
  const auto gave_up = run.spawn(dead.start());
  run.run();
  CHECK(contains(error_of([&] { gave_up->get(); }), "timeout: "));

  Launcher again = launcher(1);
  again.me.pid = getpid();
  Launcher first = launcher(0);
  std::shared_ptr<Coroutines::Outcome<Machines>> other;
  again.progress = [&](const std::string&) { other = run.spawn(first.start()); };
  const auto outcome = run.spawn(again.start());
  run.run();
  CHECK(outcome->get() == Machines{first.me, again.me});
  CHECK(other->get() == outcome->get());
}

TEST_CASE_FIXTURE(Fixture, "a launcher whose pid counts elsewhere is not taken for dead") {
  Launcher early = launcher(1);
  Launcher late = launcher(1);
  early.me.pid = 1 << 30;  // no process here
  late.me.pid = getpid();
  late.me.pid_space = "another container of host1";
  check_refused(*this, early, late,
                "--machine_rank 1 is claimed twice: on host1 (pid 1073741824) and on host1 (pid " +
                    std::to_string(getpid()) + "): give every machine its own");
}

TEST_CASE("a forked process shares its parent's PID space") {
  const std::string here = own_pid_space();
  CHECK(contains(here, " pid:["));
  CHECK(here.size() > 40);  // with the id of the boot
}

TEST_CASE_FIXTURE(Fixture, "a rank outside of the machines is refused") {
  Launcher wrong = launcher(2);
  const auto outcome = run.spawn(wrong.start());
  run.run();
  CHECK(error_of([&] { outcome->get(); }) ==
        "config: --machine_rank 2, expected 0 to 1 with --num_machines 2");
}

TEST_CASE_FIXTURE(Fixture, "machines may bring different numbers, if these add up") {
  Launcher first = launcher(0);
  Launcher second = launcher(1);
  first.me.local_world_size = 3;
  second.me.local_world_size = 1;
  const auto outcome = run.spawn(first.start());
  const auto other = run.spawn(second.start());
  run.run();
  CHECK(outcome->get() == Machines{first.me, second.me});
  CHECK(other->get() == outcome->get());
}

TEST_CASE_FIXTURE(Fixture, "numbers that do not add up are refused on every machine") {
  Launcher early = launcher(0);
  Launcher late = launcher(1);
  late.me.local_world_size = 3;
  check_refused(*this, early, late,
                "--num_processes 4 is the total over all machines, but machine 0 (host0) brings 2, "
                "machine 1 (host1) brings 3: 5 in all");
}

TEST_CASE_FIXTURE(Fixture, "machines that disagree on max_restarts are refused, all of them") {
  Launcher early = launcher(0);
  Launcher late = launcher(1);
  late.terms.max_restarts = 2;
  check_refused(*this, early, late,
                "machine 1 (host1, pid 1001) was started with --max_restarts 2, machine 0 (host0, "
                "pid 1000) with --max_restarts 0: start all machines with the same");
}

/// A launcher that learns its rank at the meeting.
struct Guest : Launcher {
  Guest(Coroutines& run, std::uint16_t server_port, int number) : Launcher(run, server_port, 0) {
    me.host = "host" + std::to_string(number);
    me.pid = 1000 + number;
    me.pid_space = me.host;
    terms.min_machines = terms.num_machines;
  }

  awaitable<Round> start() {
    co_await client.connect("127.0.0.1", port, kSoon);
    co_return co_await meet_by_arrival(client, "run", me, terms, times, progress);
  }
};

std::vector<std::string> hosts(const Round& round) {
  std::vector<std::string> names;
  for (const Machine& machine : round.machines) {
    CHECK(machine.machine_rank == static_cast<int>(names.size()));
    names.push_back(machine.host);
  }
  return names;
}

struct Arrivals : Fixture {
  Guest guest(int number) { return {run, server.port(), number}; }

  /// `second` starts when `first` has arrived and waits.
  std::pair<std::shared_ptr<Coroutines::Outcome<Round>>,
            std::shared_ptr<Coroutines::Outcome<Round>>>
  one_after_the_other(Guest& first, Guest& second) {
    std::shared_ptr<Coroutines::Outcome<Round>> late;
    first.progress = [&](const std::string&) {
      if (!late) {
        late = run.spawn(second.start());
      }
    };
    const auto early = run.spawn(first.start());
    run.run();
    return {early, late};
  }
};

TEST_CASE_FIXTURE(Arrivals, "ranks are handed out in the order of arrival") {
  Guest first = guest(7);
  Guest second = guest(3);
  const auto [early, late] = one_after_the_other(first, second);
  CHECK(early->get().machine_rank == 0);
  CHECK(late->get().machine_rank == 1);
  CHECK(hosts(early->get()) == std::vector<std::string>{"host7", "host3"});
  CHECK(late->get().machines == early->get().machines);
}

TEST_CASE_FIXTURE(Arrivals, "who serves the meeting comes first") {
  Guest host = guest(1);
  Guest other = guest(2);
  arrive_first(server, "run", host.me);
  const auto late = run.spawn(other.start());
  const auto early = run.spawn(host.start());
  run.run();
  CHECK(early->get().machine_rank == 0);
  CHECK(hosts(late->get()) == std::vector<std::string>{"host1", "host2"});
}

TEST_CASE_FIXTURE(Arrivals, "the minimum will do when the last call is over") {
  Guest first = guest(1);
  Guest second = guest(2);
  for (Guest* each : {&first, &second}) {
    each->terms = {.num_machines = 4, .min_machines = 2};
    each->times.last_call = 1ms;
  }
  const auto [early, late] = one_after_the_other(first, second);
  CHECK(hosts(early->get()) == std::vector<std::string>{"host1", "host2"});
  CHECK(late->get().machines == early->get().machines);

  Guest third = guest(3);
  third.terms = first.terms;
  const auto outcome = run.spawn(third.start());
  run.run();
  CHECK(contains(error_of([&] { outcome->get(); }),
                 "config: the job has started without this machine: 2 machines had come to"));
}

TEST_CASE_FIXTURE(Arrivals, "the last call is not waited for when all are there") {
  Guest first = guest(1);
  Guest second = guest(2);
  for (Guest* each : {&first, &second}) {
    each->terms.min_machines = 1;
    each->times.last_call = 2 * kSoon;
  }
  const auto [early, late] = one_after_the_other(first, second);
  CHECK(hosts(early->get()).size() == 2);
  CHECK(late->get().machines == early->get().machines);
}

TEST_CASE_FIXTURE(Arrivals, "a machine too many is refused, and the others run") {
  Guest first = guest(1);
  Guest second = guest(2);
  const auto [early, late] = one_after_the_other(first, second);
  Guest third = guest(3);
  const auto outcome = run.spawn(third.start());
  run.run();
  CHECK(hosts(early->get()).size() == 2);
  CHECK(contains(error_of([&] { outcome->get(); }), "config: 2 machines have already met at "));
}

awaitable<bool> leave_at(AsyncClient& client, std::uint16_t port, Machine me, Terms terms) {
  co_await client.connect("127.0.0.1", port, kSoon);
  co_await leave(client, "run", std::move(me), terms);
  co_return true;
}

TEST_CASE_FIXTURE(Arrivals, "who leaves before the round is complete gives the rank back") {
  Guest gone = guest(1);
  gone.times.timeout = 1ms;
  const auto gave_up = run.spawn(gone.start());
  run.run();
  CHECK(contains(error_of([&] { gave_up->get(); }), "timeout: 1 of 2 machines came to "));
  AsyncClient messenger(run.io.get_executor());
  run.spawn(leave_at(messenger, server.port(), gone.me, gone.terms));
  run.run();
  Guest first = guest(2);
  Guest second = guest(3);
  const auto [early, late] = one_after_the_other(first, second);
  CHECK(hosts(early->get()) == std::vector<std::string>{"host2", "host3"});
}

TEST_CASE_FIXTURE(Arrivals, "a machine that leaves during the last call leaves no gap") {
  const auto claim = [this](int rank, const std::string& text) {
    server.set(launcher_key("run", "machines/" + std::to_string(rank)), text);
  };
  Guest first = guest(1);
  Guest gone = guest(2);
  gone.me.machine_rank = 1;
  claim(0, encode(first.me));
  claim(1, encode(gone.me));
  Guest last = guest(3);
  last.terms = {.num_machines = 4, .min_machines = 2};
  last.times.last_call = 50ms;
  last.progress = [&](const std::string&) { claim(1, ""); };
  const auto outcome = run.spawn(last.start());
  run.run();
  CHECK(hosts(outcome->get()) == std::vector<std::string>{"host1", "host3"});
  CHECK(outcome->get().machine_rank == 1);
}

TEST_CASE_FIXTURE(Arrivals, "fewer than the minimum is a timeout that counts them") {
  Guest only = guest(1);
  only.terms = {.num_machines = 4, .min_machines = 2};
  only.times.timeout = 20ms;
  const auto outcome = run.spawn(only.start());
  run.run();
  CHECK(contains(error_of([&] { outcome->get(); }), "timeout: 1 of 2 to 4 machines came to "));
}

awaitable<StoreAddress> find_store(AsyncClient& client, std::uint16_t port) {
  co_await client.connect("127.0.0.1", port, kSoon);
  co_return co_await await_store(client, "run", kSoon);
}

awaitable<bool> show_store(AsyncClient& client, std::uint16_t port, StoreAddress store) {
  co_await client.connect("127.0.0.1", port, kSoon);
  co_await publish_store(client, "run", store);
  co_return true;
}

TEST_CASE_FIXTURE(Fixture, "the store that machine 0 opened is found") {
  AsyncClient one(run.io.get_executor());
  AsyncClient other(run.io.get_executor());
  const auto found = run.spawn(find_store(one, server.port()));
  run.spawn(show_store(other, server.port(), {"node 1", 65'000}));
  run.run();
  CHECK(found->get().host == "node 1");
  CHECK(found->get().port == 65'000);
}

TEST_CASE("own addresses") {
  CHECK(Server::is_own_address("127.0.0.1"));
  CHECK(Server::is_own_address("localhost"));
  CHECK_FALSE(Server::is_own_address("192.0.2.1"));  // TEST-NET-1, RFC 5737
  CHECK_FALSE(Server::is_own_address("no-such-host.invalid"));
}

}  // namespace
}  // namespace acc::rendezvous
