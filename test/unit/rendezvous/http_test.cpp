// SPDX-License-Identifier: Apache-2.0
#include "rounds/messages.hpp"
#include "support.hpp"

#include <memory>
#include <vector>

namespace acc::rendezvous {
namespace {

using test::contains;
using test::kSoon;
using test::RawClient;
using test::ServerThread;
using namespace std::chrono_literals;

const std::string kHealth = "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n";
const std::string kLastHealth = "GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n";

std::string request(const std::string& target, const std::string& headers = "") {
  return "GET " + target + " HTTP/1.1\r\n" + headers + "\r\n";
}

std::string stream(const std::string& target) {
  return request(target, "Accept: text/event-stream\r\n");
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t number = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++number;
  }
  return number;
}

TEST_CASE("HTTP shares the port with stores and agents; requests may be pipelined and split") {
  ServerThread server;
  RawClient http(server.port());
  const std::string bytes = kHealth + kHealth + request("/readyz") + kLastHealth + kHealth;
  for (const char byte : bytes) {
    http.send({&byte, 1});
  }
  const std::string replies = http.read_to_end();
  CHECK(count(replies, "HTTP/1.1 200 OK\r\n") == 4);  // none after `Connection: close`
  CHECK(count(replies, "ok\n") == 3);
  RawClient store(server.port());
  store.send(test::validate() + test::ping(7));
  CHECK(store.replies(4) == test::pong(7));
}

TEST_CASE("bad requests get a status, and end only their own connection") {
  ServerThread server;
  RawClient good(server.port());
  struct Case {
    std::string bytes, status;
  };
  const std::vector<Case> cases = {
      {"GARBAGE\r\n\r\n", "400"},
      {"GET / HTTP/9.9\r\n\r\n", "400"},
      {"GET / HTTP/1.1\r\nbad header\r\n\r\n", "400"},
      {"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "400"},
      {"GET / HTTP/1.1\r\nX: " + std::string(20'000, 'x'), "413"},
      {"GET /" + std::string(20'000, 'x'), "413"},
      {"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nabcde", "413"},
      {"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n", "413"}};
  for (const Case& each : cases) {
    CAPTURE(each.bytes.substr(0, 60));
    RawClient bad(server.port());
    bad.send(each.bytes);
    const std::string reply = bad.read_to_end();
    CHECK_MESSAGE(reply.starts_with("HTTP/1.1 " + each.status), reply);
    CHECK(contains(reply, "\"error\""));
  }
  good.send(kLastHealth);
  CHECK(contains(good.read_to_end(), "ok\n"));
}

TEST_CASE("a slow request and an idle connection are closed, a stream is not") {
  ServerThread server({.handshake_timeout = 50ms});
  RawClient watcher(server.port());
  watcher.send(stream("/api/v1/events"));
  CHECK(contains(watcher.read(17), "HTTP/1.1 200 OK"));
  RawClient slow(server.port());
  slow.send("GET /healthz HTTP/1.1\r\nX: ");
  CHECK(slow.read_to_end().empty());
  RawClient idle(server.port());
  idle.send(kHealth);
  CHECK(contains(idle.read_to_end(), "ok\n"));
  server.run([](Server& each) { CHECK(each.num_connections() == 1); });
}

TEST_CASE("watchers beyond the limit are told so; a place is free again when one leaves") {
  ServerThread server;
  std::vector<std::unique_ptr<RawClient>> watchers;
  for (int i = 0; i < 256; ++i) {
    watchers.push_back(std::make_unique<RawClient>(server.port()));
    watchers.back()->send(stream("/api/v1/events"));
    REQUIRE(contains(watchers.back()->read(17), "HTTP/1.1 200 OK"));
  }
  RawClient late(server.port());
  late.send(stream("/api/v1/events") + kLastHealth);
  const std::string replies = late.read_to_end();
  CHECK(replies.starts_with("HTTP/1.1 503"));
  CHECK(contains(replies, "too many watchers"));
  CHECK(contains(replies, "ok\n"));
  watchers.clear();
  std::size_t left = 1;
  while (left > 0) {  // until the server has noticed
    server.run([&](Server& each) { left = each.num_connections(); });
  }
  RawClient next(server.port());
  next.send(stream("/api/v1/events"));
  CHECK(contains(next.read(17), "HTTP/1.1 200 OK"));
}

std::string hello(const std::string& run_id) {
  rounds::Enter enter;
  enter.run_id = run_id;
  enter.machine.host = enter.machine.address = "here";
  enter.machine.store_port = 1;
  std::string bytes(rounds::kHello);
  rounds::encode(rounds::AgentMessage(enter), bytes);
  return bytes;
}

TEST_CASE("a stream shows what happens in a job, and ends after it") {
  ServerThread server;
  RawClient all(server.port());
  all.send(stream("/api/v1/events"));
  CHECK(contains(all.read_until("retry: 2000\n\n"), "text/event-stream"));
  RawClient agent(server.port());
  agent.send(hello("job"));
  CHECK(contains(all.read_until("round 0 is formed"), "here joined"));
  RawClient of_job(server.port());
  of_job.send(stream("/api/v1/jobs/job/events"));
  of_job.read_until("event: job\n");
  RankStatus status{.rank = 0, .state = RankStatus::State::running};
  status.metrics.loss = 2.5;
  std::string bytes;
  rounds::encode(rounds::AgentMessage(rounds::Status{{status}}), bytes);
  agent.send(bytes);
  CHECK(contains(of_job.read_until("\"loss\":2.5"), "event: job"));
  bytes.clear();
  rounds::encode(rounds::AgentMessage(rounds::Report{}), bytes);
  agent.send(bytes);
  const std::string rest = of_job.read_to_end();  // the server ends it
  CHECK(contains(rest, "\"kind\":\"job_over\""));
  CHECK(contains(rest, "\"state\":\"finished\""));
}

TEST_CASE("a watcher that does not read loses its connection") {
  const auto board = std::make_shared<Board>();
  ServerThread server({.board = board});
  RawClient watcher(server.port(), "127.0.0.1", 4096);
  watcher.send(stream("/api/v1/events"));
  watcher.read(17);
  server.run([&](Server& each) {
    CHECK(each.num_connections() == 1);
    const auto now = std::chrono::system_clock::now();
    board->tell(0, news::Created{.run_id = "job"}, now);
    const Machine machine{
        .machine_rank = {}, .host = std::string(1000, 'h'), .address = "a", .store_port = 1};
    for (int i = 0; i < 5000; ++i) {  // 10 MB: more than the kernel keeps for a reader
      board->tell(0, news::Refused{machine, std::string(1000, 'x')}, now);
    }
  });
  std::size_t left = 1;
  while (left > 0) {  // until the server has closed it
    server.run([&](Server& each) { left = each.num_connections(); });
  }
}

}  // namespace
}  // namespace acc::rendezvous
