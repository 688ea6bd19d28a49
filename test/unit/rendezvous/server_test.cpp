#include "support.hpp"

#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <deque>

namespace acc::rendezvous {
namespace {

using test::contains;
using test::encoded;
using test::ping;
using test::pong;
using test::RawClient;
using test::ServerThread;
using test::validate;
using wire::Opcode;
using namespace std::chrono_literals;

TEST_CASE("commands may arrive byte by byte, the handshake too") {
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

TEST_CASE("fifty thousand pipelined commands are answered in order") {
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

TEST_CASE("a large MULTI_SET arrives whole while others are served") {
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
  CHECK(other.replies(8) == std::string(8, '\0'));  // all or nothing
  big.send(bytes.substr(almost));
  CHECK(big.replies(0).empty());
  other.send(encoded({.opcode = Opcode::get, .keys = {"/15"}}));
  std::string expected;
  wire::put_bytes(expected, request.values.back());
  CHECK(other.replies(expected.size()) == expected);
}

TEST_CASE("a client that does not read stops being read") {
  ServerThread server({.max_unread_bytes = 64 * 1024});
  RawClient greedy(server.port());
  std::string value(std::size_t{1} << 20, 'v');
  greedy.send(validate() + encoded({.opcode = Opcode::set, .keys = {"/k"}, .values = {value}}));
  CHECK(greedy.replies(0).empty());

  // 20 bytes ask for a mebibyte: what the sockets buffer is soon full, and then sending must stop.
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
    REQUIRE(greedy.read(expected.size()) == expected);  // goes on where it stopped
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
  waiters.pop_front();  // a dead one hinders nobody
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

TEST_CASE("who speaks another protocol is closed at the first byte") {
  ServerThread server;
  RawClient http(server.port());
  http.send("G");
  CHECK(http.read_to_end().empty());
}

TEST_CASE("a silent connection is closed at the handshake limit, a validated one is not") {
  ServerThread server({.handshake_timeout = 50ms});
  RawClient validated(server.port());
  validated.send(validate());
  CHECK(validated.replies(0).empty());
  RawClient silent(server.port());
  CHECK(silent.read_to_end().empty());
  CHECK(validated.replies(0).empty());
}

TEST_CASE("stop delivers what was answered, a release too, and then closes") {
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

TEST_CASE("a server may go away before its io_context, with clients connected") {
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

TEST_CASE("a port in use is an error that names host, port, errno and the process") {
  ServerThread server;
  boost::asio::io_context io;
  const std::string error = test::error_of([&] { Server(io, "127.0.0.1", server.port()); });
  CAPTURE(error);
  CHECK(contains(error, "connection: cannot listen on 127.0.0.1:" + std::to_string(server.port())));
  CHECK(contains(error, "errno 98"));
  CHECK(contains(error, "rendezvous_test (pid " + std::to_string(getpid()) + ")"));
}

TEST_CASE("a host that is not this machine is an error") {
  boost::asio::io_context io;
  // 192.0.2.0/24 is for documentation (RFC 5737): no machine has it.
  CHECK(contains(test::error_of([&] { Server(io, "192.0.2.1", 0); }),
                 "connection: cannot listen on 192.0.2.1:0"));
}

TEST_CASE("port_owner knows who listens") {
  std::uint16_t port = 0;
  {
    ServerThread server;
    port = server.port();
    CHECK(Server::port_owner(port) == "rendezvous_test (pid " + std::to_string(getpid()) + ")");
  }
  CHECK(Server::port_owner(port) == std::nullopt);
}

TEST_CASE("all interfaces means IPv4 and, where there is any, IPv6") {
  ServerThread server({}, "");
  RawClient v4(server.port());
  v4.send(validate());
  CHECK(v4.replies(0).empty());
  boost::asio::io_context io;
  boost::asio::ip::tcp::socket probe(io);
  boost::system::error_code error;
  probe.open(boost::asio::ip::tcp::v6(), error);
  if (!error) {
    probe.bind({boost::asio::ip::address_v6::loopback(), 0}, error);
  }
  if (error) {
    MESSAGE("no IPv6 loopback here: " << error.message());
    return;
  }
  RawClient v6(server.port(), "::1");
  v6.send(validate());
  CHECK(v6.replies(0).empty());
}

}  // namespace
}  // namespace acc::rendezvous
