// SPDX-License-Identifier: Apache-2.0
// Clients that load a server, and how much of it is served before what is more important. The test
// runs the server's loop itself, and all clients are at a Unix socket, where sent bytes arrive at
// once: what is counted does not depend on the speed of the machine.
#include "rounds/messages.hpp"
#include "secure/tls.hpp"
#include "server/peers.hpp"
#include "support.hpp"
#include "support/temporary_folder.hpp"
#include "watch/api.hpp"

#include <netinet/in.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace acc::rendezvous {
namespace {

using test::contains;
using test::RawClient;

const std::string kPing = "GET /healthz HTTP/1.1\r\n\r\n";

/// A server at a Unix socket whose loop the test runs.
class Loop {
 public:
  explicit Loop(const ServerOptions& options = {})
      : path_((folder_.path() / "server").string()),
        server_(io_, listen_on({"unix:" + path_}, 0), options) {}

  std::unique_ptr<RawClient> connect() { return std::make_unique<RawClient>(path_); }
  void run(const std::function<bool()>& is_over) {
    const auto end = std::chrono::steady_clock::now() + test::kSoon;
    while (!is_over()) {
      REQUIRE(std::chrono::steady_clock::now() < end);
      io_.run_one_for(std::chrono::milliseconds(100));
    }
  }

 private:
  acc::test::TemporaryFolder folder_;
  std::string path_;
  boost::asio::io_context io_;
  Server server_;
};

/// Reads what has arrived, without waiting; -1: the server has closed.
ssize_t take(RawClient& client, std::string* bytes = nullptr) {
  ssize_t all = 0;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t count = ::recv(client.fd(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (count == 0) {
      return all == 0 ? -1 : all;
    }
    if (count < 0) {
      return all;
    }
    all += count;
    if (bytes != nullptr) {
      bytes->append(buffer, static_cast<std::size_t>(count));
    }
  }
}

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) {
    all += text;
  }
  return all;
}

std::string as_agent(const rounds::AgentMessage& message) {
  std::string bytes;
  rounds::encode(message, bytes);
  return bytes;
}

/// First bytes of an agent whose job starts with it.
std::string hello_of(int num_workers, const std::string& run_id = "job") {
  rounds::Enter enter;
  enter.run_id = run_id;
  enter.machine.host = enter.machine.address = "here";
  enter.machine.store_port = 1;
  enter.machine.local_world_size = num_workers;
  enter.times.heartbeat = std::chrono::hours(1);
  return std::string(rounds::kHello) + as_agent(enter);
}

std::string status_of(int num_workers) {
  rounds::Status status;
  for (int i = 0; i < num_workers; ++i) {
    status.ranks.push_back({.rank = i, .local_rank = i, .state = RankStatus::State::running});
  }
  return as_agent(status);
}

std::string client_hello() {
  static const auto security = ClientSecurity::make(Tokens({std::string(32, 't')}), {});
  std::string bytes;
  secure::TlsChannel::client(*security->tls, "localhost")->start(bytes);
  return bytes;
}

TEST_CASE("an agent is heard whenever another client has had one turn, whatever is sent") {
  const std::string wait = test::encoded({.opcode = wire::Opcode::wait, .keys = {"key"}});
  struct Case {
    const char* name;
    int connections;
    std::string first, last;  // sent by each connection; `last`: by the first one, at the end
    double answer_bytes;      // of one request
    double per_turn;          // most requests that one turn serves
    bool has_token = false;
  };
  const std::vector<Case> cases = {
      {"pipelined GET", 4, repeated(kPing, 2000), "", 200, 2048 / 32},
      {"the same, of strangers", 4, repeated(kPing, 2000), "", 200, 2048 / 32, true},
      {"store commands", 4, test::validate() + repeated(test::ping(1), 10'000), "", 4, 2048},
      {"waiters of one key", 400, test::validate() + test::ping(1) + wait, test::set("key", "v"), 1,
       2048 / 32},
      {"readers of all ranks", 10, "GET /api/v1/jobs/job/ranks HTTP/1.0\r\n\r\n", "", 2 << 16, 1},
      {"readers of all metrics", 10, "GET /metrics HTTP/1.0\r\n\r\n", "", 2 << 16, 1},
      {"TLS clients that say hello", 20, client_hello(), "", 500, 1, true},
  };
  for (const Case& each : cases) {
    const std::string name = each.name;
    CAPTURE(name);
    ServerOptions options;
    options.board = std::make_shared<Board>();
    if (each.has_token) {
      options.security = ServerSecurity::make(Tokens({std::string(32, 't')}), {});
    }
    Loop loop(options);
    const auto agent = loop.connect();
    agent->send(hello_of(2000));
    loop.run([&] { return options.board->find("job") != nullptr; });
    agent->send(status_of(2000));
    std::vector<std::unique_ptr<RawClient>> clients;
    for (int i = 0; i < each.connections; ++i) {
      clients.push_back(loop.connect());
      clients.back()->send(each.first);
    }
    if (!each.last.empty()) {  // the waits come first
      std::string pongs;
      loop.run([&] {
        std::ranges::for_each(clients, [&](const auto& client) { take(*client, &pongs); });
        return pongs.size() == 4 * clients.size();
      });
      clients.front()->send(each.last);
    }
    // The agent sends its next report when the server has taken the last one.
    std::vector<double> served;
    std::vector<double> total(clients.size());
    int num_reports = 0;
    const auto count = [&] {
      double all = 0;
      for (std::size_t i = 0; i < clients.size(); ++i) {
        const auto bytes = std::max<ssize_t>(take(*clients[i]), 0);
        total[i] += static_cast<double>(bytes);
        all += static_cast<double>(bytes);
      }
      return all / each.answer_bytes;
    };
    const auto report = as_agent(rounds::FailureReport{"{}"});
    const auto listener = std::make_shared<Board::Listener>([&](const Board::Event& event) {
      if (event.kind == Board::EventKind::report) {
        served.push_back(count());
        ++num_reports;
        take(*agent);
        agent->send(report);
      }
    });
    options.board->listen(listener);
    agent->send(report);
    double sum = 0;
    loop.run([&] {
      sum = 0;
      for (const double number : served) {
        sum += number;
      }
      return num_reports > 60 || sum > 50 * each.per_turn;
    });
    CHECK(sum > each.per_turn);  // the others were served, too
    // A reply that a turn has begun may be ended in the next one.
    CHECK(std::ranges::max(served) <= 2 * each.per_turn + 1);
  }
}

/// Connects clients that send `bytes`, and runs the loop until each has an answer or is closed.
/// Returns the number of those that are closed.
std::size_t closed_of(Loop& loop, std::vector<std::unique_ptr<RawClient>>& clients,
                      std::size_t number, const std::string& bytes, std::size_t num_expected) {
  for (std::size_t i = 0; i < number; ++i) {
    clients.push_back(loop.connect());
    clients.back()->send(bytes);
  }
  std::size_t num_closed = 0;
  const auto is_closed = [](const auto& client) { return take(*client) < 0; };
  loop.run([&] {
    num_closed += std::erase_if(clients, is_closed);
    return num_closed >= num_expected;
  });
  return num_closed;
}

TEST_CASE("connections in their handshake are limited per peer, and cost little") {
  const std::string part = client_hello().substr(0, 100);
  struct Case {
    const char* name;
    std::string bytes;
    bool has_token;
    std::size_t most;
  };
  for (const Case& each : std::vector<Case>{{"that send nothing", "", false, 64},
                                            {"a part of an HTTP request", "GET /", false, 64},
                                            {"a part of a hello", part, true, 64},
                                            {"TLS", client_hello(), true, 16}}) {
    const std::string name = each.name;
    CAPTURE(name);
    ServerOptions options{.max_connections = 256, .max_buffered_bytes = std::size_t{8} << 20};
    if (each.has_token) {
      options.security = ServerSecurity::make(Tokens({std::string(32, 't')}), {});
    }
    Loop loop(options);
    std::vector<std::unique_ptr<RawClient>> clients;
    CHECK(closed_of(loop, clients, each.most + 10, each.bytes, 10) == 10);
    clients.clear();  // the places are free again
    std::unique_ptr<RawClient> store;
    std::string pong;
    loop.run([&] {
      if (!store || take(*store, &pong) < 0) {  // the server may not have seen that they are free
        store = loop.connect();
        store->send(test::validate() + test::ping(7));
      }
      return pong.size() == 4;
    });
  }
}

TEST_CASE("beyond the limit of HTTP connections, probes are answered and the others end") {
  Loop loop;
  std::vector<std::unique_ptr<RawClient>> clients;
  CHECK(closed_of(loop, clients, 1100, kPing, 1100 - 1024) >= 1100 - 1024);
  struct Case {
    std::string target, status, text;
  };
  for (const Case& each :
       std::vector<Case>{{"/healthz", "200 OK", "ok\n"},
                         {"/readyz?from=probe", "200 OK", "ready\n"},
                         {"/api/v1/jobs", "503 Service Unavailable", "too many HTTP"}}) {
    const auto late = loop.connect();
    late->send("GET " + each.target + " HTTP/1.1\r\n\r\n");
    std::string reply;
    loop.run([&] { return take(*late, &reply) < 0; });
    CHECK(contains(reply, each.status));
    CHECK(contains(reply, each.text));
    CHECK(contains(reply, "Connection: close"));
  }
}

/// Returns the body of an answer in chunks; "" and the rest if it is cut off.
std::string unchunked(std::string_view reply) {
  std::string body;
  reply.remove_prefix(reply.find("\r\n\r\n") + 4);
  for (;;) {
    const auto size = std::stoul(std::string(reply.substr(0, reply.find("\r\n"))), nullptr, 16);
    reply.remove_prefix(reply.find("\r\n") + 2);
    if (size == 0) {
      CHECK(reply == "\r\n");
      return body;
    }
    REQUIRE(reply.size() > size);
    body += reply.substr(0, size);
    reply.remove_prefix(size + 2);
  }
}

TEST_CASE("a large answer comes in parts, whole in every version of HTTP") {
  ServerOptions options;
  options.board = std::make_shared<Board>();
  Loop loop(options);
  const auto agent = loop.connect();
  agent->send(hello_of(2000) + status_of(2000));
  const auto ask = [&](const std::string& method, const std::string& target, const char* version) {
    const auto client = loop.connect();
    client->send(method + " " + target + " " + version + "\r\nConnection: close\r\n\r\n");
    std::string reply;
    loop.run([&] { return take(*client, &reply) < 0; });
    return reply;
  };
  loop.run([&] {
    const Board::Job* const job = options.board->find("job");
    return job != nullptr && !job->ranks.empty() && job->ranks[1999].last_heartbeat;
  });
  for (const std::string target : {"/api/v1/jobs/job/ranks", "/metrics"}) {
    const std::string old = ask("GET", target, "HTTP/1.0");
    const std::string now = ask("GET", target, "HTTP/1.1");
    const std::string body = old.substr(old.find("\r\n\r\n") + 4);
    CHECK(!contains(old, "Content-Length"));
    CHECK(!contains(old, "chunked"));
    CHECK(contains(now, "Transfer-Encoding: chunked"));
    CHECK(body.size() > watch::kPartBytes);
    CHECK(unchunked(now).size() == body.size());
    CHECK(ask("HEAD", target, "HTTP/1.1").ends_with("\r\n\r\n"));
  }
  const std::string few = ask("GET", "/api/v1/jobs/job/ranks?from=10&limit=2", "HTTP/1.1");
  CHECK(contains(few, "Content-Length: "));
  CHECK(contains(few, "\"total\":2000,\"ranks\":[{\"rank\":10,"));
  CHECK(few.ends_with("}]}\n"));

  // Texts are made once per change of a rank.
  const Board::Job& job = *options.board->find("job");
  job.ranks[10].text = "\"kept\"";
  CHECK(contains(ask("GET", "/api/v1/jobs/job/ranks", "HTTP/1.0"), ",\"kept\",{\"rank\":11,"));
  agent->send(status_of(11));
  loop.run([&] { return job.ranks[10].text.empty(); });

  // Other ranks: the answer is cut off.
  const watch::Parts parts =
      watch::ranks_json([&] { return options.board->find("job"); }, 0, SIZE_MAX);
  std::string text;
  REQUIRE(parts(text));
  Round round;
  round.local_world_sizes = {2000};
  options.board->tell(job.number, news::Formed{round, {job.machines.begin()->first}},
                      std::chrono::system_clock::now());
  CHECK(contains(test::error_of([&] { parts(text); }), "other ranks since the beginning"));
}

/// A client that another user runs, if the test may do so.
class ClientOf {
 public:
  ClientOf(uid_t user, std::uint16_t port) {
    REQUIRE(::pipe(pipe_) == 0);
    child_ = ::fork();
    if (child_ == 0) {
      sockaddr_in server{};
      server.sin_family = AF_INET;
      server.sin_port = htons(port);
      server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      char byte = 0;
      const bool works = ::setuid(user) == 0;
      const int client = ::socket(AF_INET, SOCK_STREAM, 0);
      ::connect(client, reinterpret_cast<const sockaddr*>(&server), sizeof server);
      ::close(pipe_[1]);
      ::_exit(works && ::read(pipe_[0], &byte, 1) == 0 ? 0 : 1);
    }
    ::close(pipe_[0]);
  }
  ~ClientOf() {
    ::close(pipe_[1]);
    int status = 0;
    ::waitpid(child_, &status, 0);
    CHECK(status == 0);
  }

 private:
  int pipe_[2]{};
  pid_t child_ = 0;
};

TEST_CASE("wrong proofs shut out their user only, and no address that knows the token") {
  using namespace std::chrono_literals;
  const auto now = std::chrono::steady_clock::now();
  auto listeners = listen_on({"127.0.0.1"}, 0);
  const auto accepted = [&](Peers& peers) {
    sockaddr_storage from{};
    socklen_t size = sizeof from;
    pollfd poll{listeners[0].socket.get(), POLLIN, 0};
    REQUIRE(::poll(&poll, 1, 30'000) == 1);
    const UniqueFd client(
        ::accept(listeners[0].socket.get(), reinterpret_cast<sockaddr*>(&from), &size));
    return peers.of(client.get(), from);
  };
  Peers peers(2);
  const RawClient own(listeners[0].port);
  const auto mine = accepted(peers);
  CHECK(!mine->is_limited);
  CHECK(mine->name == "127.0.0.1");
  if (::geteuid() == 0) {
    constexpr uid_t kNobody = 65'534;
    const ClientOf other(kNobody, listeners[0].port);
    const auto theirs = accepted(peers);
    CHECK(theirs != mine);
    CHECK(theirs->is_limited);
    CHECK(theirs->name == "127.0.0.1 user 65534");
    Peers::failed(*theirs, now);
    Peers::failed(*theirs, now);
    CHECK(peers.is_shut_out(*theirs, now));
    CHECK(!peers.is_shut_out(*mine, now));
    CHECK(!peers.is_shut_out(*theirs, now + 61s));
  }
  Peers::succeeded(*mine, now);
  for (int i = 0; i < 5; ++i) {
    Peers::failed(*mine, now + 59min);
  }
  CHECK(!peers.is_shut_out(*mine, now + 59min));
  for (int i = 0; i < 2; ++i) {
    Peers::failed(*mine, now + 2h);
  }
  CHECK(peers.is_shut_out(*mine, now + 2h));
}

}  // namespace
}  // namespace acc::rendezvous
