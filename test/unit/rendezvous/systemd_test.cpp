// SPDX-License-Identifier: Apache-2.0
#include "daemon.hpp"
#include "support/text.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>

#include <csignal>

namespace acc::rendezvous {
namespace {

using acc::test::Program;
using test::contains;
using test::Daemon;
using test::RawClient;
using test::validate;

/// The service manager's end of $NOTIFY_SOCKET.
class Manager {
 public:
  Manager() : socket_(test::bound_to((folder_.path() / "notify").string(), SOCK_DGRAM)) {}

  [[nodiscard]] std::string path() const { return (folder_.path() / "notify").string(); }

  /// Returns the next message that contains `part`.
  std::string hear(const std::string& part) { return hear_on(socket_, part); }

  static std::string hear_on(const UniqueFd& socket, const std::string& part) {
    for (;;) {
      pollfd event{socket.get(), POLLIN, 0};
      REQUIRE_MESSAGE(::poll(&event, 1, 30'000) == 1, "received no ", part);
      std::string text(4096, '\0');
      text.resize(static_cast<std::size_t>(::recv(socket.get(), text.data(), text.size(), 0)));
      if (contains(text, part)) {
        return text;
      }
    }
  }

 private:
  acc::test::TemporaryFolder folder_;
  UniqueFd socket_;
};

TEST_CASE("the service manager receives READY, STATUS and STOPPING") {
  Manager manager;
  const acc::test::TemporaryFolder folder;
  const std::string port_file = folder.path() / "port";
  Daemon daemon({"--port", "0", "--port_file", port_file}, {{"NOTIFY_SOCKET", manager.path()}});
  CHECK(manager.hear("READY=1") == "READY=1\nSTATUS=jobs 0, connections 0, keys 0");
  const std::string address = acc::test::file_text(port_file);  // complete when READY arrives
  RawClient client(static_cast<std::uint16_t>(std::stoi(address.substr(address.find(':') + 1))));
  client.send(validate());
  client.replies(0);
  CHECK(manager.hear("STATUS") == "STATUS=jobs 0, connections 1, keys 0");
  daemon.signal(SIGTERM);
  CHECK(contains(manager.hear("STOPPING=1"), "STATUS="));
  CHECK(daemon.wait() == 0);
}

TEST_CASE("the service manager's address may be an abstract name") {
  const std::string name = "@acc-rendezvous-test-" + std::to_string(::getpid());
  sockaddr_un address = test::unix_address(name);
  address.sun_path[0] = '\0';
  const UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  REQUIRE(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0);
  Daemon daemon({"--port", "0"}, {{"NOTIFY_SOCKET", name}});
  CHECK(contains(Manager::hear_on(socket, "READY=1"), "STATUS="));
}

TEST_CASE("the daemon feeds the watchdog that is meant for it, while it serves") {
  Manager manager;
  Daemon daemon({"--port", "0"}, {{"NOTIFY_SOCKET", manager.path()}, {"WATCHDOG_USEC", "20000"}});
  manager.hear("READY=1");
  for (int i = 0; i < 3; ++i) {
    CHECK(manager.hear("WATCHDOG=1") == "WATCHDOG=1");
  }
  daemon.signal(SIGTERM);
  CHECK(daemon.wait() == 0);

  Manager other;
  Daemon not_watched(
      {"--port", "0"},
      {{"NOTIFY_SOCKET", other.path()}, {"WATCHDOG_USEC", "1000"}, {"WATCHDOG_PID", "1"}});
  RawClient client(not_watched.port());  // a second passes until the status shows it
  CHECK(contains(other.hear("READY=1"), "STATUS="));
  CHECK(other.hear("") == "STATUS=jobs 0, connections 1, keys 0");
}

TEST_CASE("a service manager that does not listen does not stop the daemon") {
  Daemon daemon({"--port", "0"}, {{"NOTIFY_SOCKET", "/nowhere/notify"}});
  daemon.port();
  daemon.wait_for_text("cannot notify the service manager at /nowhere/notify: No such file");
  Daemon strange({"--port", "0"}, {{"NOTIFY_SOCKET", "tcp:1"}});
  strange.port();
  strange.wait_for_text("NOTIFY_SOCKET must be /path or @name, got \"tcp:1\"");
}

/// The daemon with a socket as descriptor 3, as systemd starts it.
Program with_inherited(const UniqueFd& socket, const std::string& pid,
                       const std::string& count = "1") {
  return Program({"/bin/sh", "-c",
                  "exec 3<&" + std::to_string(socket.get()) + "; export LISTEN_FDS=" + count +
                      " LISTEN_PID=" + pid + "; exec " + test::kDaemon + " --port 0"});
}

UniqueFd listening_tcp(std::uint16_t& port) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM, 0));  // inherited
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  REQUIRE(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
  REQUIRE(::listen(socket.get(), 8) == 0);
  REQUIRE(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
  port = ntohs(address.sin_port);
  return socket;
}

TEST_CASE("the daemon serves sockets that the service manager has bound") {
  std::uint16_t port = 0;
  const UniqueFd socket = listening_tcp(port);
  RawClient early(port);  // before the daemon has started
  Program daemon = with_inherited(socket, "$$");
  daemon.wait_for_text("listening on 127.0.0.1:" + std::to_string(port) + "\n");
  early.send(validate());
  CHECK(early.replies(0).empty());

  // The service is the owner, not systemd, which keeps the socket.
  REQUIRE(::prctl(PR_SET_NAME, "systemd") == 0);
  CHECK(Server::port_owner(port) == "acc-rendezvous (pid " + std::to_string(daemon.pid()) + ")");
  REQUIRE(::prctl(PR_SET_NAME, "daemon_test") == 0);
}

TEST_CASE("inherited sockets for another process are ignored") {
  std::uint16_t port = 0;
  const UniqueFd socket = listening_tcp(port);
  Program daemon = with_inherited(socket, "1");
  daemon.wait_for_text("listening on 127.0.0.1:");
  CHECK_FALSE(contains(daemon.out(), ":" + std::to_string(port) + "\n"));
}

TEST_CASE("a wrong number of inherited sockets is an error") {
  std::uint16_t port = 0;
  const UniqueFd socket = listening_tcp(port);
  for (const auto& [count, message] : std::initializer_list<std::pair<std::string, std::string>>{
           {"9223372036854775807", "LISTEN_FDS=9223372036854775807, but descriptor"},
           {"-1", "LISTEN_FDS=-1, expected the number of sockets"},
           {"one", "LISTEN_FDS=one, expected the number of sockets"}}) {
    Program daemon = with_inherited(socket, "$$", count);
    CHECK(daemon.wait() == 2);
    CHECK_MESSAGE(contains(daemon.err(), message), daemon.err());
  }
}

TEST_CASE("an inherited descriptor that is not a listening socket is an error") {
  const UniqueFd datagrams(::socket(AF_INET, SOCK_DGRAM, 0));
  Program daemon = with_inherited(datagrams, "$$");
  CHECK(daemon.wait() == 2);
  CHECK_MESSAGE(contains(daemon.err(), "inherited descriptor 3 must be a listening"), daemon.err());
}

}  // namespace
}  // namespace acc::rendezvous
