// SPDX-License-Identifier: Apache-2.0
#include "support.hpp"

#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <deque>

namespace acc::rendezvous {
namespace {

using test::encoded;
using test::get;
using test::ping;
using test::pong;
using test::RawClient;
using test::ServerThread;
using test::set;
using test::sized;
using test::validate;
using wire::Opcode;
using namespace std::chrono_literals;

TEST_CASE("commands may arrive byte by byte, including the handshake") {
  ServerThread server;
  RawClient client(server.port());
  const std::string bytes = validate() + ping(7) +
                            encoded({.opcode = Opcode::set, .keys = {"/k"}, .values = {"v"}}) +
                            encoded({.opcode = Opcode::get, .keys = {"/k"}});
  for (const char byte : bytes) {
    client.send(std::string(1, byte));
  }
  std::string value;
  wire::put_bytes(value, "v");
  CHECK(client.replies(4 + value.size()) == pong(7) + value);
}

TEST_CASE("replies to 50,000 pipelined commands are in order") {
  ServerThread server;
  RawClient client(server.port());
  std::string requests = validate();
  std::string expected;
  for (int i = 1; i <= 50'000; ++i) {
    requests += encoded({.opcode = Opcode::add, .keys = {"/n"}, .number = 1});
    wire::put_i64(expected, i);
  }
  std::thread sender([&] { client.send(requests); });
  const bool same = client.read(expected.size()) == expected;
  sender.join();
  CHECK(same);
}

TEST_CASE("a large MULTI_SET takes effect as a whole, and other clients are served meanwhile") {
  ServerThread server;
  RawClient big(server.port());
  RawClient other(server.port());
  wire::Request request{.opcode = Opcode::multi_set};
  for (int i = 0; i < 16; ++i) {
    request.keys.push_back("/" + std::to_string(i));
    request.values.emplace_back(std::size_t{1} << 20, static_cast<char>('a' + i));
  }
  const std::string bytes = validate() + encoded(request);
  const std::size_t almost = bytes.size() - 1;
  big.send(bytes.substr(0, almost));
  other.send(validate() + encoded({.opcode = Opcode::num_keys}));
  CHECK(other.replies(8) == std::string(8, '\0'));  // none of the keys is stored yet
  big.send(bytes.substr(almost));
  CHECK(big.replies(0).empty());
  other.send(encoded({.opcode = Opcode::get, .keys = {"/15"}}));
  std::string expected;
  wire::put_bytes(expected, request.values.back());
  CHECK(other.replies(expected.size()) == expected);
}

TEST_CASE("requests of a client that does not read its replies are not read") {
  ServerThread server({.max_unread_bytes = 64 * 1024});
  RawClient greedy(server.port());
  std::string value(std::size_t{1} << 20, 'v');
  greedy.send(validate() + encoded({.opcode = Opcode::set, .keys = {"/k"}, .values = {value}}));
  CHECK(greedy.replies(0).empty());

  // A request of 20 bytes has a reply of 1 MiB: the socket buffers are soon full, then the server
  // must stop reading.
  const std::string get = encoded({.opcode = Opcode::get, .keys = {std::string("/k")}});
  std::string gets;
  for (int i = 0; i < 100'000; ++i) {
    gets += get;
  }
  std::size_t sent = 0;
  pollfd writable{greedy.fd(), POLLOUT, 0};
  while (sent < gets.size() * 64 && poll(&writable, 1, 300) == 1) {
    const ssize_t count = send(greedy.fd(), gets.data() + sent % gets.size(),
                               gets.size() - sent % gets.size(), MSG_DONTWAIT);
    REQUIRE(count > 0);
    sent += static_cast<std::size_t>(count);
  }
  CHECK(sent < gets.size() * 64);

  RawClient other(server.port());
  other.send(validate() + encoded({.opcode = Opcode::num_keys}));
  CHECK(other.replies(8) == std::string("\x01\0\0\0\0\0\0\0", 8));
  std::string expected;
  wire::put_bytes(expected, value);
  for (int i = 0; i < 20; ++i) {
    REQUIRE(greedy.read(expected.size()) == expected);  // continues where it stopped
  }
}

TEST_CASE("a thousand waiters are released by one SET") {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  const std::size_t num_waiters = std::min<std::size_t>(1000, limit.rlim_cur / 4);

  ServerThread server;
  std::deque<RawClient> waiters;
  for (std::size_t i = 0; i < num_waiters; ++i) {
    RawClient& waiter = waiters.emplace_back(server.port());
    waiter.send(validate() + encoded({.opcode = Opcode::wait, .keys = {"/go"}}));
    CHECK(waiter.replies(0).empty());
  }
  waiters.pop_front();  // a closed one does not affect the others
  RawClient setter(server.port());
  setter.send(validate() + encoded({.opcode = Opcode::set, .keys = {"/go"}, .values = {""}}));
  CHECK(setter.replies(0).empty());
  for (RawClient& waiter : waiters) {
    CHECK(waiter.replies(1) == std::string(1, wire::kReleased));
  }
}

TEST_CASE("a violation ends its own connection only, after the earlier replies") {
  ServerThread server;
  RawClient good(server.port());
  good.send(validate());
  RawClient bad(server.port());
  bad.send(validate() + ping(5) + "\xff");
  CHECK(bad.read_to_end() == pong(5));
  CHECK(good.replies(0).empty());
}

TEST_CASE("a client of another protocol is disconnected at the first byte") {
  ServerThread server;
  RawClient stranger(server.port());
  stranger.send("\x7f");
  CHECK(stranger.read_to_end().empty());
}

TEST_CASE("a silent connection is closed at the handshake timeout, a validated one is not") {
  ServerThread server({.handshake_timeout = 50ms});
  RawClient validated(server.port());
  validated.send(validate());
  CHECK(validated.replies(0).empty());
  RawClient silent(server.port());
  CHECK(silent.read_to_end().empty());
  CHECK(validated.replies(0).empty());
}

TEST_CASE("a client that closes its sending side still receives its replies") {
  ServerThread server;
  const std::string value(std::size_t{4} << 20, 'v');
  RawClient client(server.port());
  std::string requests = validate() + set("/k", value);
  std::string expected;
  for (int i = 0; i < 10; ++i) {
    requests += get("/k");
    expected += sized(value);
  }
  client.send(requests);
  client.half_close();
  CHECK(client.read_to_end() == expected);
}

TEST_CASE("other clients are served while a large request arrives") {
  ServerThread server;
  RawClient big(server.port());
  RawClient other(server.port());
  other.send(validate());
  wire::Request request{.opcode = Opcode::multi_set};
  for (int i = 0; i < 4096; ++i) {
    request.keys.push_back("/" + std::to_string(i));
    request.values.emplace_back(4096, 'v');
  }
  const std::string bytes = validate() + encoded(request);
  constexpr std::size_t kPieces = 64;
  const std::size_t piece = bytes.size() / kPieces;
  for (std::size_t i = 0; i < kPieces; ++i) {
    big.send(bytes.substr(i * piece, piece));
    other.send(encoded({.opcode = Opcode::num_keys}));
    CHECK(other.replies(8) == std::string(8, '\0'));
  }
  big.send(bytes.substr(kPieces * piece));
  CHECK(big.replies(0).empty());
  other.send(encoded({.opcode = Opcode::num_keys}));
  CHECK(other.replies(8) == std::string("\0\x10\0\0\0\0\0\0", 8));
}

TEST_CASE("a client that exceeds a limit loses only its own connection") {
  struct Case {
    ServerOptions options;
    std::string bytes;
  };
  const std::string value(40'000, 'v');
  const std::string begun = set("/big", value).substr(0, 30'000);
  const std::string half = set("/half", std::string(20'000, 'v'));
  const wire::Request twice{.opcode = Opcode::multi_get, .keys = {"/half", "/half"}};
  const wire::Request list{.opcode = Opcode::check, .keys = std::vector<std::string>(1'000)};
  const std::string begun_list = encoded(list).substr(0, 8'000);
  for (const Case& each : std::vector<Case>{
           {{.max_keys = 1}, set("/a", "1") + set("/b", "")},
           {{.max_bytes = 30'000}, set("/big", value)},
           {{.max_frame_bytes = 30'000}, begun},
           {{.max_frame_bytes = 30'000}, half + encoded(twice)},
           {{.max_buffered_bytes = 20'000}, begun},
           {{.max_buffered_bytes = 20'000}, begun_list},
       }) {
    ServerThread server(each.options);
    RawClient good(server.port());
    good.send(validate() + set("/a", "1"));
    CHECK(good.replies(0).empty());
    RawClient bad(server.port());
    bad.send(validate() + ping(5) + each.bytes);
    CHECK(bad.read_to_end() == pong(5));
    good.send(get("/a") + get("/big"));
    CHECK(good.replies(9 + 8) == sized("1") + sized(""));
  }
}

TEST_CASE("when too much is buffered, the client with the largest share is disconnected") {
  ServerThread server({.max_buffered_bytes = 100'000});
  const std::string frame = set("/k", std::string(90'000, 'v'));
  RawClient good(server.port());
  good.send(validate() + frame.substr(0, 30'000));
  RawClient hoarder(server.port());
  hoarder.send(validate() + frame.substr(0, 80'000));
  CHECK(hoarder.read_to_end().empty());
  good.send(frame.substr(30'000));
  CHECK(good.replies(0).empty());
}

TEST_CASE("unread replies count as buffered, and are released with their client") {
  ServerThread server({.max_buffered_bytes = std::size_t{8} << 20});
  RawClient good(server.port());
  const std::string value(std::size_t{4} << 20, 'v');
  good.send(validate() + set("/k", value));
  CHECK(good.replies(0).empty());
  std::deque<RawClient> greedy;
  for (int i = 0; i < 8; ++i) {
    greedy.emplace_back(server.port(), "127.0.0.1", 4096).send(validate() + get("/k") + get("/k"));
  }
  std::size_t left = greedy.size();
  while (left == greedy.size()) {  // until one has been disconnected
    server.run([&](Server& running) { left = running.num_connections() - 1; });
  }
  good.send(get("/k"));
  CHECK(good.replies(8 + value.size()) == sized(value));
}

TEST_CASE("clients beyond max_connections are refused, and accepted when there is room") {
  ServerThread server({.max_connections = 2});
  std::deque<RawClient> clients;
  for (int i = 0; i < 2; ++i) {
    clients.emplace_back(server.port()).send(validate());
    CHECK(clients.back().replies(0).empty());
  }
  CHECK(RawClient(server.port()).read_to_end().empty());
  clients.front().send("\xff");
  CHECK(clients.front().read_to_end().empty());
  clients.pop_front();
  std::size_t num_clients = 2;
  while (num_clients == 2) {
    server.run([&](Server& running) { num_clients = running.num_connections(); });
  }
  RawClient next(server.port());
  next.send(validate());
  CHECK(next.replies(0).empty());
}

TEST_CASE("without free descriptors clients wait, and are accepted when there are some") {
  ServerThread server;
  RawClient first(server.port());
  first.send(validate());
  CHECK(first.replies(0).empty());

  const int second = socket(AF_INET, SOCK_STREAM, 0);
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(dup(second));
  close(static_cast<int>(none.rlim_cur));
  setrlimit(RLIMIT_NOFILE, &none);
  const boost::asio::ip::tcp::endpoint endpoint(boost::asio::ip::address_v4::loopback(),
                                                server.port());
  REQUIRE(connect(second, endpoint.data(), static_cast<socklen_t>(endpoint.size())) == 0);
  const std::string hello = validate() + ping(1);
  REQUIRE(send(second, hello.data(), hello.size(), 0) == static_cast<ssize_t>(hello.size()));
  CHECK(first.replies(0).empty());
  std::size_t num_clients = 0;
  server.run([&](Server& running) { num_clients = running.num_connections(); });
  CHECK(num_clients == 1);

  setrlimit(RLIMIT_NOFILE, &before);
  std::string reply(4, '\0');
  CHECK(recv(second, reply.data(), reply.size(), MSG_WAITALL) == 4);
  CHECK(reply == pong(1));
  close(second);
}

TEST_CASE("an idle store deletes its keys, one in use does not") {
  ServerThread server({.idle_timeout = 50ms});
  const auto num_keys = [&] {
    RawClient client(server.port());
    client.send(validate() + encoded({.opcode = Opcode::num_keys}));
    return client.replies(8)[0];
  };
  {
    RawClient client(server.port());
    client.send(validate() + set("/k", "v"));
    CHECK(client.replies(0).empty());
    pollfd nothing{};
    poll(&nothing, 0, 200);  // longer than the idle timeout
    CHECK(num_keys() == 1);
  }
  while (num_keys() != 0) {
    pollfd nothing{};
    poll(&nothing, 0, 100);
  }
}

TEST_CASE("renew_store disconnects the store's clients and deletes all keys") {
  ServerThread server;
  RawClient client(server.port());
  client.send(validate() + set("/k", "v"));
  CHECK(client.replies(0).empty());
  server.run([](Server& running) { running.renew_store(); });
  CHECK(client.read_to_end().empty());
  RawClient next(server.port());
  next.send(validate() + encoded({.opcode = Opcode::num_keys}));
  CHECK(next.replies(8) == std::string(8, '\0'));
}

TEST_CASE("stop delivers queued replies, including releases, and then closes") {
  ServerThread server;
  RawClient waiter(server.port());
  waiter.send(validate() + encoded({.opcode = Opcode::barrier, .keys = {"/b"}, .number = 2}));
  CHECK(waiter.replies(0).empty());
  RawClient last(server.port());
  last.send(validate() + encoded({.opcode = Opcode::barrier, .keys = {"/b"}, .number = 2}));
  CHECK(last.read(1) == std::string(1, wire::kReleased));
  server.stop();
  CHECK(waiter.read_to_end() == std::string(1, wire::kReleased));
  CHECK(last.read_to_end().empty());
}

TEST_CASE("a server may be destroyed before its io_context, with clients connected") {
  boost::asio::io_context io;
  auto server = std::make_unique<Server>(io, "127.0.0.1", 0);
  RawClient client(server->port());
  client.send(validate() + encoded({.opcode = Opcode::wait, .keys = {"/never"}}));
  while (server->num_connections() == 0) {
    io.run_one();
  }
  server.reset();
  io.run();
  CHECK(client.read_to_end().empty());
}

}  // namespace
}  // namespace acc::rendezvous
