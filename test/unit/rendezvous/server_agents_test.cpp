// SPDX-License-Identifier: Apache-2.0
#include "rounds/messages.hpp"
#include "support.hpp"

#include <atomic>

namespace acc::rendezvous {
namespace {

using test::kSoon;
using test::RawClient;
using test::ServerThread;
using test::validate;
using namespace std::chrono_literals;

rounds::ServerMessage next_message(RawClient& agent) {
  std::string frame = agent.read(4);
  frame += agent.read(wire::get_u32(frame.data()));
  std::string_view bytes = frame;
  auto message = rounds::take_server_message(bytes);
  REQUIRE(message);
  return *message;
}

std::string hello(const rounds::Enter& enter) {
  std::string bytes(rounds::kHello);
  rounds::encode(rounds::AgentMessage(enter), bytes);
  return bytes;
}

/// The first of two machines.
rounds::Enter first(std::chrono::milliseconds heartbeat) {
  rounds::Enter enter;
  enter.run_id = "job";
  enter.machine.host = enter.machine.address = "here";
  enter.machine.store_port = 1;
  enter.terms.num_machines = enter.terms.min_machines = 2;
  enter.times.heartbeat = heartbeat;
  return enter;
}

TEST_CASE("an agent is not dropped as silent because the server was delayed") {
  constexpr auto kHeartbeat = 500ms;
  for (bool in_time = false; !in_time;) {  // this thread may be late, too
    ServerThread server;
    RawClient agent(server.port());
    const auto begin = std::chrono::steady_clock::now();
    agent.send(hello(first(kHeartbeat)));
    REQUIRE(std::holds_alternative<rounds::Welcome>(next_message(agent)));
    REQUIRE(std::holds_alternative<rounds::Waiting>(next_message(agent)));
    std::string beat;
    rounds::encode(rounds::AgentMessage(rounds::Beat{}), beat);
    server.run([&](Server& /*held up*/) {
      in_time = std::chrono::steady_clock::now() - begin < kHeartbeat;
      agent.send(beat);
      std::this_thread::sleep_for(2 * kHeartbeat);
    });
    if (in_time) {
      CHECK(std::holds_alternative<rounds::Beat>(next_message(agent)));
    }
  }
}

TEST_CASE("stop waits for an agent to read its messages, within a limit") {
  for (const auto limit : {std::chrono::milliseconds(1h), 50ms}) {
    ServerThread server({.stop_timeout = limit});
    auto agent = std::make_unique<RawClient>(server.port());
    agent->send(std::string(rounds::kHello));
    RawClient other(server.port());
    other.send(validate());
    CHECK(other.replies(0).empty());  // the agent connected before and is known now
    std::atomic<bool> has_stopped = false;
    std::thread stopper([&] {
      server.stop();
      has_stopped = true;
    });
    CHECK(agent->read_to_end().empty());
    CHECK(other.read_to_end().empty());
    if (limit == 1h) {
      CHECK_FALSE(has_stopped);
      agent.reset();
    }
    stopper.join();
  }
}

TEST_CASE("stop does not wait for an agent that is considered dead") {
  ServerThread server({.stop_timeout = 1h});
  RawClient agent(server.port());
  agent.send(hello(first(100ms)));
  REQUIRE(std::holds_alternative<rounds::Welcome>(next_message(agent)));
  REQUIRE(std::holds_alternative<rounds::Waiting>(next_message(agent)));
  std::promise<void> unattended;
  server.run([&](Server& running) { running.retire([&] { unattended.set_value(); }); });
  CHECK(unattended.get_future().wait_for(kSoon) == std::future_status::ready);
  server.stop();
  CHECK(std::get<rounds::Dropped>(next_message(agent)).why == rounds::Dropped::Why::lost);
  CHECK(agent.read_to_end().empty());
}

TEST_CASE("a refused agent receives the reason, whatever it still sends") {
  ServerThread server;
  RawClient agent(server.port());
  rounds::Enter enter = first(1s);
  enter.terms.ranks_are_given = true;
  enter.machine.machine_rank = 7;
  agent.send(hello(enter) + std::string(std::size_t{1} << 20, 'x'));
  CHECK(std::get<rounds::Dropped>(next_message(agent)).why == rounds::Dropped::Why::config);
  CHECK(agent.read_to_end().empty());
}

/// Lets `agent` join a job at `server`, which the calling thread runs.
void enter(RawClient& agent, const Server& server, boost::asio::io_context& io) {
  agent.send(hello(first(1h)));
  while (server.num_jobs() == 0) {
    io.run_one();
  }
}

TEST_CASE("a retired server may be destroyed by its callback") {
  boost::asio::io_context io;
  auto server = std::make_unique<Server>(io, "127.0.0.1", 0);
  RawClient agent(server->port());
  enter(agent, *server, io);
  server->retire([&] { server.reset(); });
  CHECK(server);
  agent.half_close();
  io.run();
  CHECK_FALSE(server);
}

TEST_CASE("a retired server accepts connections until the end of its refusals") {
  boost::asio::io_context io;
  auto server = std::make_unique<Server>(io, "127.0.0.1", 0);
  RawClient other(server->port());
  enter(other, *server, io);
  // Two of three machines disagree, and the third one is still to come.
  RawClient refused[] = {RawClient(server->port()), RawClient(server->port())};
  rounds::Enter machine = first(1h);
  machine.run_id = "another job";
  machine.terms.num_machines = machine.terms.min_machines = 3;
  machine.times.close = 100ms;
  for (RawClient& each : refused) {
    each.send(hello(machine));
    ++machine.terms.num_processes;
  }
  while (!server->is_refusing()) {
    io.run_one();
  }
  server->retire([&] { server.reset(); });
  CHECK_NOTHROW(RawClient(server->port()));
  while (server->is_refusing()) {
    io.run_one();
  }
  CHECK_THROWS(RawClient(server->port()));
  for (RawClient* each : {&other, &refused[0], &refused[1]}) {
    each->half_close();
  }
  io.run();
  CHECK_FALSE(server);
}

TEST_CASE("a server that is destroyed before its agents disconnect does not call back") {
  boost::asio::io_context io;
  auto server = std::make_unique<Server>(io, "127.0.0.1", 0);
  RawClient agent(server->port());
  enter(agent, *server, io);
  bool is_told = false;
  server->retire([&] { is_told = true; });
  server.reset();
  io.run();
  CHECK_FALSE(is_told);
}

}  // namespace
}  // namespace acc::rendezvous
