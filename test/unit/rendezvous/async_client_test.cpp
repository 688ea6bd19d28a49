#include "acc/rendezvous/async_client.hpp"

#include "support.hpp"

#include <boost/asio/awaitable.hpp>

namespace acc::rendezvous {
namespace {

using boost::asio::awaitable;
using test::contains;
using test::Coroutines;
using test::error_of;
using test::kSoon;
using Keys = std::vector<std::string>;
using namespace std::chrono_literals;

// g++ 12 cannot compile a braced list of strings inside a coroutine.
template <typename... Names>
Keys keys(Names... names) {
  return {names...};
}

awaitable<bool> use_everything(AsyncClient& client, std::uint16_t port) {
  co_await client.connect("127.0.0.1", port, kSoon);
  co_await client.set("a", "1");
  CHECK(co_await client.get("a") == "1");
  CHECK(co_await client.add("n", 5) == 5);
  CHECK(co_await client.add("n", -7) == -2);
  CHECK(co_await client.compare_set("a", "1", "2") == "2");
  CHECK(co_await client.compare_set("a", "1", "3") == "2");
  CHECK(co_await client.check(keys("a", "n")));
  CHECK_FALSE(co_await client.check(keys("a", "absent")));
  CHECK(co_await client.multi_get(keys("n", "absent", "a")) == keys("-2", "", "2"));
  CHECK(co_await client.wait(keys("a", "n")));
  CHECK_FALSE(co_await client.wait(keys("absent"), 1ms));
  CHECK(co_await client.barrier("alone", 1));
  CHECK_FALSE(co_await client.barrier("b", 2, 0ms));
  CHECK(co_await client.barrier("b", 2));  // the first arrival stays counted
  CHECK(co_await client.delete_key("a"));
  CHECK_FALSE(co_await client.delete_key("a"));
  co_return true;
}

TEST_CASE("every call of the asynchronous client") {
  Coroutines run;
  Server server(run.io, "127.0.0.1", 0);
  AsyncClient client(run.io.get_executor());
  const auto done = run.spawn(use_everything(client, server.port()));
  run.run();
  CHECK(done->get());
}

awaitable<bool> connect_only(AsyncClient& client, std::uint16_t port,
                             AsyncClient::Milliseconds timeout = kSoon,
                             AsyncClient::Progress progress = {}) {
  co_await client.connect("127.0.0.1", port, timeout, std::move(progress));
  co_return true;
}

awaitable<std::string> get_soon(AsyncClient& client, std::uint16_t port, std::string key,
                                std::optional<AsyncClient::Milliseconds> timeout = std::nullopt) {
  co_await client.connect("127.0.0.1", port, kSoon);
  co_return co_await client.get(key, timeout);
}

awaitable<bool> set_soon(AsyncClient& client, std::uint16_t port, std::string key) {
  co_await client.connect("127.0.0.1", port, kSoon);
  co_await client.set(key, "v");
  co_return true;
}

TEST_CASE("a get waits for another client's set") {
  Coroutines run;
  Server server(run.io, "127.0.0.1", 0);
  AsyncClient first(run.io.get_executor());
  AsyncClient second(run.io.get_executor());
  const auto got = run.spawn(get_soon(first, server.port(), "k"));
  const auto set = run.spawn(set_soon(second, server.port(), "k"));
  run.run();
  CHECK(got->get() == "v");
  CHECK(set->get());
}

TEST_CASE("a get that times out says so and names the key") {
  Coroutines run;
  Server server(run.io, "127.0.0.1", 0);
  AsyncClient client(run.io.get_executor());
  const auto got = run.spawn(get_soon(client, server.port(), "never", 1ms));
  run.run();
  CHECK(contains(error_of([&] { got->get(); }), "timeout: no key never at the store 127.0.0.1:"));
}

awaitable<bool> close_other(AsyncClient& client, std::uint16_t port, AsyncClient& other) {
  co_await client.connect("127.0.0.1", port, kSoon);
  co_await client.check({});
  other.close();
  co_return true;
}

TEST_CASE("close ends a pending wait") {
  Coroutines run;
  Server server(run.io, "127.0.0.1", 0);
  AsyncClient waiting(run.io.get_executor());
  AsyncClient closing(run.io.get_executor());
  const auto got = run.spawn(get_soon(waiting, server.port(), "never"));
  const auto closed = run.spawn(close_other(closing, server.port(), waiting));
  run.run();
  CHECK(closed->get());
  CHECK(contains(error_of([&] { got->get(); }), "the connection was closed here"));
}

TEST_CASE("a client that is destroyed ends its pending wait") {
  Coroutines run;
  Server server(run.io, "127.0.0.1", 0);
  auto client = std::make_unique<AsyncClient>(run.io.get_executor());
  run.spawn(connect_only(*client, server.port()));
  run.run();
  const auto got = run.spawn(client->get("never"));
  client.reset();
  run.run();
  CHECK(contains(error_of([&] { got->get(); }), "connection: "));
}

TEST_CASE("a server that goes away is a connection error that names it") {
  Coroutines run;
  auto server = std::make_unique<Server>(run.io, "127.0.0.1", 0);
  AsyncClient client(run.io.get_executor());
  run.spawn(connect_only(client, server->port()));
  run.run();
  const auto got = run.spawn(client.get("never"));
  server.reset();
  run.run();
  const std::string error = error_of([&] { got->get(); });
  CAPTURE(error);
  CHECK(contains(error, "connection: store at " + client.where()));
}

awaitable<bool> check_nothing(AsyncClient& client) {
  co_await client.check({});
  co_return true;
}

TEST_CASE("two calls at once are refused, the first goes on") {
  Coroutines run;
  Server server(run.io, "127.0.0.1", 0);
  AsyncClient client(run.io.get_executor());
  AsyncClient other(run.io.get_executor());
  const auto got = run.spawn(get_soon(client, server.port(), "k"));
  while (server.num_connections() == 0) {
    run.io.run_one();
  }
  const auto second = run.spawn(check_nothing(client));
  const auto set = run.spawn(set_soon(other, server.port(), "k"));
  run.run();
  CHECK(contains(error_of([&] { second->get(); }), "internal: two calls at once"));
  CHECK(got->get() == "v");
  CHECK(set->get());
}

TEST_CASE("connecting waits for a server that comes later, and says so") {
  Coroutines run;
  const std::uint16_t port = Server(run.io, "127.0.0.1", 0).port();
  std::unique_ptr<Server> server;
  std::string told;
  AsyncClient client(run.io.get_executor());
  const auto connected = run.spawn(connect_only(client, port, kSoon, [&](const std::string& text) {
    told = text;
    server = std::make_unique<Server>(run.io, "127.0.0.1", port);
  }));
  run.run();
  CHECK(connected->get());
  CHECK(told == "waiting for the store at 127.0.0.1:" + std::to_string(port) + ", 0 s of 30 s");
}

TEST_CASE("connecting gives up at its time limit, with the reason") {
  Coroutines run;
  const std::uint16_t port = Server(run.io, "127.0.0.1", 0).port();
  AsyncClient client(run.io.get_executor());
  const auto connected = run.spawn(connect_only(client, port, 30ms, {}));
  run.run();
  const std::string error = error_of([&] { connected->get(); });
  CAPTURE(error);
  CHECK(contains(error, "timeout: no answer within 0.03 s from the store at 127.0.0.1:" +
                            std::to_string(port)));
  CHECK(contains(error, "Connection refused"));
}

}  // namespace
}  // namespace acc::rendezvous
