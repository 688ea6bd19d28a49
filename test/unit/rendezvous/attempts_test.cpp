#include "acc/rendezvous/attempts.hpp"

#include "support.hpp"

namespace acc::rendezvous {
namespace {

using boost::asio::awaitable;
using test::contains;
using test::Coroutines;
using test::error_of;
using test::kSoon;
using Milliseconds = AsyncClient::Milliseconds;
using Cause = AttemptEnd::Cause;
using namespace std::chrono_literals;

struct Fixture {
  Coroutines run;
  Server server{run.io, "127.0.0.1", 0};
};

awaitable<AttemptEnd> wait_for_end(AsyncClient& client, std::uint16_t port, int attempt = 0) {
  co_await client.connect("127.0.0.1", port, kSoon);
  co_return co_await await_end(client, "run", attempt);
}

awaitable<AttemptEnd> end_attempt(AsyncClient& client, std::uint16_t port, int attempt,
                                  AttemptEnd end) {
  co_await client.connect("127.0.0.1", port, kSoon);
  co_return co_await announce_end(client, "run", attempt, end);
}

TEST_CASE_FIXTURE(Fixture, "the first end is everybody's end") {
  std::vector<AsyncClient> clients;
  for (int i = 0; i < 3; ++i) {
    clients.emplace_back(run.io.get_executor());
  }
  const auto heard = run.spawn(wait_for_end(clients[0], server.port()));
  const auto first = run.spawn(
      end_attempt(clients[1], server.port(), 0,
                  {1, 137, false, Cause::worker, "rank 3 on host1\nwas killed by signal 9"}));
  run.run();
  const auto second = run.spawn(end_attempt(clients[2], server.port(), 0,
                                            {0, 1, false, Cause::other, "rank 0 lost its peer"}));
  run.run();
  const AttemptEnd expected{1, 137, false, Cause::worker, "rank 3 on host1 was killed by signal 9"};
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

TEST_CASE_FIXTURE(Fixture, "the end of the job that finds a restart ends the next attempt") {
  AsyncClient failed(run.io.get_executor());
  AsyncClient stopped(run.io.get_executor());
  AsyncClient third(run.io.get_executor());
  const AttemptEnd failure{0, 9, true, Cause::worker, "rank 0 failed"};
  const AttemptEnd stop{1, 143, false, Cause::stop, "stopped by SIGTERM"};
  const auto first = run.spawn(end_attempt(failed, server.port(), 0, failure));
  run.run();
  const auto second = run.spawn(end_attempt(stopped, server.port(), 0, stop));
  const auto heard = run.spawn(wait_for_end(third, server.port(), 1));
  run.run();
  CHECK(first->get() == failure);
  CHECK(second->get() == stop);
  CHECK(heard->get() == stop);
}

using End = std::optional<AttemptEnd>;

awaitable<Settlement> end_workers(AsyncClient& client, std::uint16_t port, int machine,
                                  End announced) {
  co_await client.connect("127.0.0.1", port, kSoon);
  if (announced) {
    co_await announce_end(client, "run", 0, *announced);
  }
  std::string report = "report of " + std::to_string(machine);
  co_return co_await settle(client, "run", 0, machine, 2, std::move(report));
}

TEST_CASE_FIXTURE(Fixture, "machines whose workers have ended learn how the attempt ended") {
  for (const End& expected : {End(), End({1, 9, true, Cause::worker, "rank 2 failed"})}) {
    Server store(run.io, "127.0.0.1", 0);
    AsyncClient own(run.io.get_executor());
    AsyncClient other(run.io.get_executor());
    const auto first = run.spawn(end_workers(own, store.port(), 0, std::nullopt));
    const auto second = run.spawn(end_workers(other, store.port(), 1, expected));
    run.run();
    for (const auto& settled : {first->get(), second->get()}) {
      CHECK(settled.end == expected);
      CHECK(settled.reports == std::vector<std::string>{"report of 0", "report of 1"});
    }
  }
}

TEST_CASE_FIXTURE(Fixture, "nobody waits for the report of a machine that is gone") {
  AsyncClient own(run.io.get_executor());
  report_nothing(server, "run", 0, 1);
  const auto settled = run.spawn(end_workers(own, server.port(), 0, std::nullopt));
  run.run();
  CHECK(settled->get().reports == std::vector<std::string>{"report of 0", ""});
  report_nothing(server, "run", 0, 0);  // it had reported before it went
  const auto so_far = [&](AsyncClient& client) -> awaitable<Settlement> {
    co_return co_await settled_so_far(client, "run", 0, 2);
  };
  const auto later = run.spawn(so_far(own));
  run.run();
  CHECK(later->get().reports == std::vector<std::string>{"report of 0", ""});
}

awaitable<std::vector<std::string>> values_after_restart(AsyncClient& launcher, AsyncClient& worker,
                                                         Server& server) {
  co_await launcher.connect("127.0.0.1", server.port(), kSoon);
  co_await worker.connect("127.0.0.1", server.port(), kSoon);
  co_await open_attempt(launcher, "run", 0);
  co_await worker.set("gloo/rank0", "address of the dead");
  server.forget_workers();
  co_await await_attempt(launcher, "run", 0);
  std::vector<std::string> keys = {"gloo/rank0"};
  co_return co_await launcher.multi_get(std::move(keys));
}

TEST_CASE_FIXTURE(Fixture, "a store forgets its workers, and keeps what launchers know") {
  AsyncClient own(run.io.get_executor());
  AsyncClient worker(run.io.get_executor());
  const auto values = run.spawn(values_after_restart(own, worker, server));
  run.run();
  CHECK(values->get() == std::vector<std::string>{""});
  const auto call = [&]() -> awaitable<bool> { co_return co_await worker.delete_key("key"); };
  const auto outcome = run.spawn(call());
  run.run();
  CHECK(contains(error_of([&] { outcome->get(); }), "connection: "));
}

awaitable<std::vector<int>> tie_and_count(AsyncClient& client, std::uint16_t port, int machine) {
  co_await client.connect("127.0.0.1", port, kSoon);
  co_await tie(client, "run", machine);
  co_return co_await await_ties(client, "run", 4, 1ms);
}

TEST_CASE_FIXTURE(Fixture, "a machine that goes is noticed, whether asked before or after") {
  std::vector<AsyncClient> machines;
  for (int i = 0; i < 2; ++i) {
    machines.emplace_back(run.io.get_executor());
  }
  const auto first = run.spawn(tie_and_count(machines[0], server.port(), 3));
  run.run();
  const auto second = run.spawn(tie_and_count(machines[1], server.port(), 1));
  run.run();
  CHECK(first->get() == std::vector<int>{1, 2});
  CHECK(second->get() == std::vector<int>{2});

  const auto run_until = [this](const std::function<bool()>& done) {
    run.io.restart();
    while (!done()) {
      REQUIRE(run.io.run_one_for(kSoon) == 1);
    }
  };
  machines[0].close();
  run_until([this] { return server.num_connections() == 1; });
  std::vector<int> gone;
  server.on_machine_gone([&](int machine) { gone.push_back(machine); });
  CHECK(gone == std::vector<int>{3});
  machines[1].close();
  run_until([&] { return server.num_connections() == 0; });
  CHECK(gone == std::vector<int>{3, 1});
}

}  // namespace
}  // namespace acc::rendezvous
