// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/host_addresses.hpp"
#include "support.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>

namespace acc::rendezvous {
namespace {

using test::contains;
using test::error_of;
using test::get;
using test::RawClient;
using test::ServerThread;
using test::set;
using test::sized;
using test::validate;

TEST_CASE("a Unix socket serves like a port, next to one, and leaves no file") {
  const std::string path = "/tmp/acc-rendezvous-test-" + std::to_string(getpid());
  const std::vector<std::string> both{"unix:" + path, "127.0.0.1"};
  {
    ServerThread server({}, listen_on(both, 0));
    RawClient local(path);
    local.send(validate() + set("/k", "v"));
    CHECK(local.replies(0).empty());
    RawClient remote(server.port());
    remote.send(validate() + get("/k"));
    CHECK(remote.replies(9) == sized("v"));
    CHECK(contains(error_of([&] { listen_on(both, 0); }),
                   "connection: cannot listen on unix:" + path + ": rendezvous_test (pid"));
  }
  CHECK(access(path.c_str(), F_OK) != 0);
  // The file that a killed server leaves behind is replaced.
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  const int stale = socket(AF_UNIX, SOCK_STREAM, 0);
  REQUIRE(bind(stale, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  close(stale);
  ServerThread server({}, listen_on(both, 0));
  RawClient local(path);
  local.send(validate());
  CHECK(local.replies(0).empty());
}

TEST_CASE("a port in use is an error that names host, port, errno and the process") {
  ServerThread server;
  boost::asio::io_context io;
  const std::string error = error_of([&] { Server(io, "127.0.0.1", server.port()); });
  CAPTURE(error);
  CHECK(contains(error, "connection: cannot listen on 127.0.0.1:" + std::to_string(server.port())));
  CHECK(contains(error, "errno 98"));
  CHECK(contains(error, "rendezvous_test (pid " + std::to_string(getpid()) + ")"));
  CHECK_FALSE(listen_unless_in_use({"127.0.0.1"}, server.port()));
}

TEST_CASE("a host that is not this machine is an error") {
  boost::asio::io_context io;
  // 192.0.2.0/24 is for documentation (RFC 5737): no machine has it.
  CHECK(contains(error_of([&] { Server(io, "192.0.2.1", 0); }),
                 "connection: cannot listen on 192.0.2.1:0"));
  CHECK(contains(error_of([] { listen_unless_in_use({"192.0.2.1"}, 29500); }),
                 "connection: cannot listen on 192.0.2.1:29500"));
}

TEST_CASE("an IPv4-mapped IPv6 address is listened on as IPv4") {
  const std::vector<Listener> listeners = listen_on({"::ffff:127.0.0.1", "127.0.0.1"}, 0);
  REQUIRE(listeners.size() == 1);
  CHECK(listeners.front().address == "127.0.0.1:" + std::to_string(listeners.front().port));
}

TEST_CASE("a server listens on those published addresses that belong to its machine") {
  using Words = std::vector<std::string>;
  const Words all = {"*"};
  struct Case {
    std::string host;
    Words found;
    Words expected;
  };
  // 192.0.2.0/24 is for documentation (RFC 5737): no machine has it.
  for (const auto& [host, found, expected] : {
           Case{"127.0.0.1", {"127.0.0.1"}, {"127.0.0.1"}},
           Case{"127.0.1.1", {"127.0.1.1"}, {"127.0.1.1"}},
           Case{"localhost", {"127.0.0.1"}, {"127.0.0.1"}},
           Case{"0.0.0.0", {"0.0.0.0"}, {"0.0.0.0"}},
           Case{"192.0.2.1", {"192.0.2.1"}, all},
           Case{"node0", {"127.0.1.1"}, all},
           Case{"node0", {"192.0.2.1", "127.0.1.1"}, all},
           Case{"node0", {"192.0.2.1"}, all},
           Case{"node0", {}, all},
       }) {
    CAPTURE(host);
    HostAddresses addresses;
    for (const std::string& each : found) {
      addresses.addresses.push_back(boost::asio::ip::make_address(each));
    }
    CHECK(hosts_to_listen_on(host, addresses) == expected);
  }
}

TEST_CASE("port_owner names the listening process") {
  std::uint16_t port = 0;
  {
    ServerThread server;
    port = server.port();
    CHECK(Server::port_owner(port) == "rendezvous_test (pid " + std::to_string(getpid()) + ")");
  }
  CHECK(Server::port_owner(port) == std::nullopt);
}

TEST_CASE("all interfaces means IPv4 and, if available, IPv6") {
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
