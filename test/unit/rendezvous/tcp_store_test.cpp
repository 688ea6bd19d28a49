// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/tcp_store.hpp"

#include "impostor.hpp"
#include "support.hpp"

#include <algorithm>
#include <functional>
#include <map>

namespace acc::rendezvous {
namespace {

using test::contains;
using test::error_of;
using test::Impostor;
using test::kForEver;
using test::kSoon;
using test::ServerThread;
using Keys = std::vector<std::string>;
using namespace std::chrono_literals;

using Socket = Impostor::Socket;

TEST_CASE("keys are sent as PyTorch sends them") {
  Impostor server([](Socket& socket) {
    Impostor::greet(socket);
    CHECK(Impostor::read(socket, 21) ==
          test::encoded({.opcode = wire::Opcode::set, .keys = {"/k"}, .values = {"v1"}}));
  });
  TcpStore("127.0.0.1", server.port(), kSoon).set("k", "v1");
}

TEST_CASE("unlisted keys can be read by name and are not listed") {
  ServerThread server;
  TcpStore store("127.0.0.1", server.port(), kSoon);
  store.set(std::string(kUnlistedKeys) + "k", "v");
  store.set("unlisted", "");
  store.set("listed/unlisted/k", "");
  CHECK(store.get(std::string(kUnlistedKeys) + "k", kSoon) == "v");
  Keys listed = store.list_keys();
  std::ranges::sort(listed);
  CHECK(listed == Keys{"listed/unlisted/k", "unlisted"});
  CHECK(store.num_keys() == 3);
}

TEST_CASE("a release that crosses the cancel counts as released") {
  Impostor server([](Socket& socket) {
    Impostor::greet(socket);
    Impostor::read(socket, 1 + 8 + 8 + 2);                    // WAIT /k
    CHECK(Impostor::read(socket, 1) == std::string("\x0c"));  // CANCEL_WAIT
    Impostor::write(socket, std::string("\0\1", 2));
    Impostor::read_to_end(socket);
  });
  TcpStore store("127.0.0.1", server.port(), kSoon);
  store.wait(Keys{"k"}, 1ms);
}

TEST_CASE("the loss of the server is a connection error that names it, now and in later calls") {
  auto server = std::make_unique<ServerThread>();
  const std::string where = "127.0.0.1:" + std::to_string(server->port());
  TcpStore store("127.0.0.1", server->port(), kSoon);
  std::thread stopper([&] { server->stop(); });
  const std::string error = error_of([&] { store.get("never", kSoon); });
  stopper.join();
  CAPTURE(error);
  CHECK(contains(error, "connection: "));
  CHECK(contains(error, where));
  CHECK(contains(error_of([&] { store.num_keys(); }), "connection: "));
}

TEST_CASE("a server that stops replying is a timeout") {
  Impostor server([](Socket& socket) {
    Impostor::greet(socket);
    Impostor::read_to_end(socket);
  });
  {
    TcpStore store("127.0.0.1", server.port(), kSoon, {.call_timeout = 50ms});
    CHECK(contains(error_of([&] { store.num_keys(); }), "timeout: store at 127.0.0.1:"));
    CHECK(contains(error_of([&] { store.num_keys(); }), "connection: "));
  }
}

TEST_CASE("a missing server is a timeout that names the server and the reason") {
  std::uint16_t port = 0;
  {
    ServerThread server;
    port = server.port();
  }
  const std::string error = error_of([&] { TcpStore("127.0.0.1", port, 30ms); });
  CAPTURE(error);
  CHECK(contains(error, "timeout: cannot reach the store at 127.0.0.1:" + std::to_string(port)));
  CHECK(contains(error, "Connection refused"));
}

TEST_CASE("the client waits for a server that starts later") {
  boost::asio::io_context io;
  const std::uint16_t port = Server(io, "127.0.0.1", 0).port();
  std::unique_ptr<Server> server;
  std::jthread later([&] {
    server = std::make_unique<Server>(io, "127.0.0.1", port);
    io.restart();
    io.run();
  });
  TcpStore store("127.0.0.1", port, kSoon);
  store.set("k", "v");
  CHECK(store.get("k", kSoon) == "v");
  boost::asio::post(io, [&] { server->stop(); });
}

TEST_CASE("a server of another protocol is a protocol error") {
  Impostor server([](Socket& socket) {
    Impostor::read(socket, 10);
    Impostor::write(socket, "HTTP/1.1 400 Bad Request");
    Impostor::read_to_end(socket);
  });
  CHECK(contains(error_of([&] { TcpStore("127.0.0.1", server.port(), kSoon); }),
                 "protocol: store at 127.0.0.1:"));
}

TEST_CASE("a reply with an impossible length is a protocol error") {
  Impostor server([](Socket& socket) {
    Impostor::greet(socket);
    Impostor::write(socket, std::string(8, '\xff'));
    Impostor::read_to_end(socket);
  });
  TcpStore store("127.0.0.1", server.port(), kSoon);
  CHECK(contains(error_of([&] { store.compare_set("k", "a", "b"); }), "protocol: "));
}

TEST_CASE("the client refuses what the server would refuse, and the connection stays usable") {
  ServerThread server;
  TcpStore store("127.0.0.1", server.port(), kSoon);
  CHECK(contains(error_of([&] { store.set("k", std::string(wire::kMaxValueBytes + 1, 'v')); }),
                 "invalid_argument: "));
  store.set("k", std::string(wire::kMaxValueBytes, 'v'));
  CHECK(store.get("k", kSoon).size() == wire::kMaxValueBytes);
}

TEST_CASE("a stop request ends a blocked call at once, and all later ones") {
  const std::map<std::string, std::function<void(Store&)>> calls{
      {"wait", [](Store& store) { store.wait(Keys{"never"}, kForEver); }},
      {"get", [](Store& store) { store.get("never", kForEver); }},
      {"multi_get", [](Store& store) { store.multi_get(Keys{"never"}, kForEver); }},
      {"queue_pop", [](Store& store) { store.queue_pop("never", kForEver); }},
      {"barrier", [](Store& store) { store.barrier("never", 2, kForEver); }},
  };
  for (const auto& [name, call] : calls) {
    CAPTURE(name);
    std::stop_source stop;
    // Requests the stop when the server has received the request, to which it never replies.
    Impostor server([&](Socket& socket) {
      Impostor::greet(socket);
      Impostor::read(socket, 1 + 8 + 6);  // opcode, count or length, and some of the name
      stop.request_stop();
      Impostor::read_to_end(socket);
    });
    TcpStore store("127.0.0.1", server.port(), kSoon, {.stop = stop.get_token()});
    CHECK(contains(error_of([&] { call(store); }), "connection: store at 127.0.0.1:"));
    CHECK(contains(error_of([&] { store.ping(); }), "connection: "));
    CHECK(contains(error_of([&] { store.clone(); }), "connection: "));
  }
}

TEST_CASE("a stop request between two calls ends the next one, even if that would not wait") {
  ServerThread server;
  std::stop_source stop;
  TcpStore store("127.0.0.1", server.port(), kSoon, {.stop = stop.get_token()});
  store.set("k", "v");
  stop.request_stop();
  CHECK(contains(error_of([&] { store.set("k", "w"); }), "stopped on request"));
}

TEST_CASE("more keys than fit one request are sent in several") {
  ServerThread server;
  TcpStore store("127.0.0.1", server.port(), kSoon);
  std::vector<Store::KeyValue> pairs;
  Keys keys;
  for (std::size_t i = 0; i <= wire::kMaxKeys; ++i) {
    keys.push_back(std::to_string(i));
    pairs.emplace_back(keys.back(), keys.back());
  }
  store.multi_set(pairs);
  CHECK(store.multi_get(keys, kSoon) == keys);
  CHECK(store.check(keys));
  keys.push_back("absent");
  CHECK_FALSE(store.check(keys));
  CHECK(contains(error_of([&] { store.wait(keys, 1ms); }), "absent"));
}

TEST_CASE("more bytes than fit one request are sent in several") {
  ServerThread server;
  TcpStore store("127.0.0.1", server.port(), kSoon);
  const std::string large(wire::kMaxValueBytes, 'v');
  store.multi_set(std::vector<Store::KeyValue>{{"a", large}, {"b", large}, {"c", large}});
  CHECK(store.multi_get(Keys{"c", "a"}, kSoon) == Keys{large, large});
}

TEST_CASE("an error about many keys names a part of them") {
  ServerThread server;
  TcpStore store("127.0.0.1", server.port(), kSoon);
  const Keys keys{"k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7", "k8", "k9"};
  CHECK(contains(error_of([&] { store.wait(keys, 1ms); }), "k6, k7 and 2 more at the store "));
}

}  // namespace
}  // namespace acc::rendezvous
