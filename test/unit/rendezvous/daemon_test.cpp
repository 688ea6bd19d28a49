// SPDX-License-Identifier: Apache-2.0
#include "daemon.hpp"

#include "rounds/messages.hpp"
#include "support/text.hpp"

#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>

namespace acc::rendezvous {
namespace {

using test::contains;
using test::Daemon;
using test::RawClient;
using test::ServerThread;
using test::validate;
using wire::Opcode;

/// A path for a Unix socket, in a separate folder.
class SocketPath {
 public:
  [[nodiscard]] std::string path() const { return (folder_.path() / "s").string(); }
  [[nodiscard]] std::string host() const { return "unix:" + path(); }

 private:
  acc::test::TemporaryFolder folder_;
};

/// Returns the reply of the Unix socket to a handshake and a PING; empty if no process listens.
std::string ping_over(const std::string& path) {
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_un address = test::unix_address(path);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return {};
  }
  const std::string request = validate() + test::ping(7);
  REQUIRE(::send(socket.get(), request.data(), request.size(), 0) ==
          static_cast<ssize_t>(request.size()));
  std::string reply(4, '\0');
  reply.resize(static_cast<std::size_t>(::recv(socket.get(), reply.data(), 4, MSG_WAITALL)));
  return reply;
}

TEST_CASE("the daemon serves until a signal ends it") {
  for (const int number : {SIGTERM, SIGINT}) {
    Daemon daemon({"--port", "0", "--max_connections", "8"});
    RawClient client(daemon.port());
    CHECK(daemon.out().starts_with("listening on 127.0.0.1:"));
    client.send(validate());
    CHECK(client.replies(0).empty());
    daemon.signal(number);
    CHECK(daemon.wait() == 0);
    CHECK(client.read_to_end().empty());
    CHECK(daemon.err().empty());
  }
}

TEST_CASE("a stop delivers queued replies, a second signal does not wait for that") {
  for (const bool again : {false, true}) {
    Daemon daemon({"--port", "0", "--stop_timeout", "1h", "--max_unread_bytes", "1GiB"});
    RawClient client(daemon.port());
    const std::string value(1 << 20, 'v');
    client.send(validate() +
                test::encoded({.opcode = Opcode::set, .keys = {"k"}, .values = {value}}));
    constexpr std::size_t kReplies = 16;
    for (std::size_t i = 0; i < kReplies; ++i) {
      client.send(test::encoded({.opcode = Opcode::get, .keys = {"k"}}));
    }
    CHECK(client.read(8).size() == 8);  // it replies; the rest is more than sockets hold
    RawClient second(daemon.port());
    second.send(validate());
    for (std::size_t i = 0; i <= kReplies; ++i) {  // between two of them, a GET has its turn
      second.replies(0);
    }
    daemon.signal(SIGTERM);
    if (again) {
      CHECK(second.read_to_end().empty());
      daemon.signal(SIGTERM);
      CHECK(daemon.wait() == 128 + SIGTERM);
    } else {
      CHECK(client.read_to_end().size() == kReplies * (8 + value.size()) - 8);
      CHECK(daemon.wait() == 0);
    }
  }
}

TEST_CASE("SIGHUP logs the status") {
  Daemon daemon({"--port", "0"});
  RawClient client(daemon.port());
  client.send(validate() + test::encoded({.opcode = Opcode::set, .keys = {"k"}, .values = {"v"}}));
  client.replies(0);
  daemon.signal(SIGHUP);
  daemon.wait_for_text("jobs 0, connections 1, keys 1");
  client.replies(0);
}

TEST_CASE("the status counts jobs by run id") {
  Daemon daemon({"--port", "0"});
  std::vector<std::unique_ptr<RawClient>> agents;
  for (const std::string run_id : {"one", "two", "one"}) {
    std::string bytes(rounds::kHello);
    rounds::Enter enter;
    enter.run_id = run_id;
    enter.terms.num_machines = enter.terms.min_machines = 3;
    enter.machine.address = "here";
    enter.machine.store_port = 1;
    rounds::encode(rounds::AgentMessage(enter), bytes);
    agents.push_back(std::make_unique<RawClient>(daemon.port()));
    agents.back()->send(bytes);
  }
  RawClient after(daemon.port());
  after.send(validate());
  after.replies(0);
  daemon.signal(SIGHUP);
  daemon.wait_for_text("jobs 2, connections 4, keys 0");
}

TEST_CASE("the error of a port in use names the process that holds it") {
  ServerThread server;
  Daemon daemon({"--port", std::to_string(server.port())});
  CHECK(daemon.wait() == 1);
  const std::string owner = "daemon_test (pid " + std::to_string(::getpid()) + ") listens there";
  CHECK_MESSAGE(contains(daemon.err(), owner), daemon.err());
  CHECK(daemon.out().empty());
}

TEST_CASE("the daemon serves every given host on the same port") {
  const SocketPath socket;
  Daemon daemon({"--host", "127.0.0.1,127.0.0.2", "--host=" + socket.host(), "--port", "0"});
  const std::uint16_t port = daemon.port();
  CHECK(daemon.out() == "listening on 127.0.0.1:" + std::to_string(port) +
                            "\nlistening on 127.0.0.2:" + std::to_string(port) + "\nlistening on " +
                            socket.host() + "\n");
  for (const char* host : {"127.0.0.1", "127.0.0.2"}) {
    RawClient client(port, host);
    client.send(validate());
    CHECK(client.replies(0).empty());
  }
  CHECK(test::pong(7) == ping_over(socket.path()));
}

TEST_CASE("IPv6 is served, with or without brackets, and by *") {
  for (const char* host : {"::1", "[::1]", "*", "localhost,::1"}) {
    Daemon daemon({"--host", host, "--port", "0", "--insecure"});
    RawClient client(daemon.port(), "::1");
    client.send(validate());
    CHECK(client.replies(0).empty());
  }
}

TEST_CASE("a host that is not this machine is an error, also next to one that is") {
  Daemon daemon({"--host", "127.0.0.1,192.0.2.1", "--port", "0"});
  CHECK(daemon.wait() == 1);
  CHECK_MESSAGE(contains(daemon.err(), "cannot listen on 192.0.2.1:"), daemon.err());
}

TEST_CASE("a Unix socket is accessible to its user only, and removed at the end") {
  const SocketPath socket;
  Daemon daemon({"--host", socket.host()});
  daemon.wait_for_text("listening on " + socket.host() + "\n");
  struct stat status {};
  REQUIRE(::stat(socket.path().c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
  daemon.signal(SIGTERM);
  CHECK(daemon.wait() == 0);
  CHECK_FALSE(std::filesystem::exists(socket.path()));
}

TEST_CASE("the Unix socket of a dead daemon is replaced, that of a live one is not") {
  const SocketPath socket;
  {
    Daemon killed({"--host", socket.host()});
    killed.wait_for_text("listening on");
    killed.signal(SIGKILL);
    killed.wait();
  }
  REQUIRE(std::filesystem::exists(socket.path()));
  Daemon daemon({"--host", socket.host()});
  daemon.wait_for_text("listening on");
  CHECK(test::pong(7) == ping_over(socket.path()));

  Daemon second({"--host", socket.host()});
  CHECK(second.wait() == 1);
  CHECK_MESSAGE(contains(second.err(), "acc-rendezvous (pid " + std::to_string(daemon.pid()) + ")"),
                second.err());
  CHECK(test::pong(7) == ping_over(socket.path()));
}

TEST_CASE("a file that is not a socket is left alone") {
  const SocketPath socket;
  std::ofstream(socket.path()) << "mine";
  Daemon daemon({"--host", socket.host()});
  CHECK(daemon.wait() == 1);
  CHECK_MESSAGE(contains(daemon.err(), "a file, which is not a socket"), daemon.err());
  CHECK(acc::test::file_text(socket.path()) == "mine");
}

TEST_CASE("the port file exists only while the daemon serves") {
  const acc::test::TemporaryFolder folder;
  const std::string path = folder.path() / "port";
  std::ofstream(path) << "127.0.0.1:1\n";  // left behind by a killed daemon
  Daemon daemon({"--port", "0", "--port_file", path});
  const std::uint16_t port = daemon.port();
  CHECK(acc::test::file_text(path) == "127.0.0.1:" + std::to_string(port) + "\n");

  Daemon second({"--port", std::to_string(port), "--port_file", path});
  CHECK(second.wait() == 1);
  CHECK(contains(acc::test::file_text(path), std::to_string(port)));

  daemon.signal(SIGTERM);
  CHECK(daemon.wait() == 0);
  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("a port file that cannot be written is an error") {
  const acc::test::TemporaryFolder folder;
  const std::string victim = folder.path() / "victim";
  acc::test::write_text(victim, "mine");
  const std::string link = folder.path() / "link";
  std::filesystem::create_symlink(victim, link);
  const std::string fifo = folder.path() / "fifo";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  const std::string hard_link = folder.path() / "hard_link";
  std::filesystem::create_hard_link(victim, hard_link);
  const std::pair<std::string, std::string> rows[] = {
      {"/nowhere/port", "No such file or directory"},
      {"/dev/stdout", "it is a symbolic link to /proc/self/fd/1"},
      {"/dev/null", "it is a device"},
      {link, "it is a symbolic link to " + victim},
      {fifo, "it is a FIFO"},
      {hard_link, "the file has 2 names"},
      {folder.path(), "it is a folder"},
  };
  for (const auto& [path, reason] : rows) {
    CAPTURE(path);
    Daemon daemon({"--port", "0", "--port_file", path});
    CHECK(daemon.wait() == 2);
    CHECK_MESSAGE((contains(daemon.err(), path) && contains(daemon.err(), reason)), daemon.err());
  }
  CHECK(std::filesystem::is_symlink("/dev/stdout"));
  CHECK(acc::test::file_text(victim) == "mine");
  CHECK(std::filesystem::is_symlink(link));
}

TEST_CASE("a port file keeps its mode and owner, and another daemon's is not removed") {
  const acc::test::TemporaryFolder folder;
  const std::string path = folder.path() / "port";
  acc::test::write_text(path, "127.0.0.1:1\n");
  REQUIRE(::chmod(path.c_str(), 0640) == 0);
  const bool is_root = ::geteuid() == 0;
  REQUIRE((!is_root || ::chown(path.c_str(), 65534, 65534) == 0));
  Daemon daemon({"--port", "0", "--port_file", path});
  daemon.port();
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0640);
  CHECK(status.st_uid == (is_root ? 65534U : ::geteuid()));

  Daemon second({"--port", "0", "--port_file", path});
  const std::string port = std::to_string(second.port());
  daemon.signal(SIGTERM);
  CHECK(daemon.wait() == 0);
  CHECK(contains(acc::test::file_text(path), ":" + port));
}

TEST_CASE("a token file keeps its mode and owner when the token is rotated, a link is refused") {
  const acc::test::TemporaryFolder folder;
  const std::string path = folder.path() / "token";
  const std::string old = std::string(64, 'a') + "\n";
  acc::test::write_text(path, old);
  REQUIRE(::chmod(path.c_str(), 0640) == 0);
  const bool is_root = ::geteuid() == 0;
  REQUIRE((!is_root || ::chown(path.c_str(), 65534, 65534) == 0));
  CHECK(test::run_daemon({"rotate-token", path}).status == 0);
  const std::string text = acc::test::file_text(path);
  CHECK(text.size() == 2 * old.size());
  CHECK(text.ends_with("\n" + old));
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0640);
  CHECK(status.st_uid == (is_root ? 65534U : ::geteuid()));

  const std::string link = folder.path() / "link";
  std::filesystem::create_symlink(path, link);
  const auto refused = test::run_daemon({"rotate-token", link});
  CHECK(refused.status == 2);
  CHECK_MESSAGE(contains(refused.err, "it is a symbolic link to " + path), refused.err);
  CHECK(acc::test::file_text(path) == text);
}

TEST_CASE("the Unix socket of another user is not removed") {
  if (::geteuid() != 0) {
    MESSAGE("skipped: only root can make files of another user");
    return;
  }
  const SocketPath socket;
  test::bound_to(socket.path(), SOCK_STREAM);
  REQUIRE(::lchown(socket.path().c_str(), 65534, 65534) == 0);
  Daemon daemon({"--host", socket.host()});
  CHECK(daemon.wait() == 1);
  CHECK_MESSAGE(contains(daemon.err(), "the path is a socket of user 65534"), daemon.err());
  CHECK(std::filesystem::exists(socket.path()));
}

TEST_CASE("an address that other machines can reach causes a warning, loopback does not") {
  Daemon open({"--host", "*", "--port", "0", "--insecure"});
  open.wait_for_text("0.0.0.0:" + std::to_string(open.port()) + " is open");
  const SocketPath socket;
  Daemon closed({"--host", "127.0.0.1,::1," + socket.host(), "--port", "0"});
  closed.port();
  closed.signal(SIGTERM);
  CHECK(closed.wait() == 0);
  CHECK_FALSE(contains(closed.err(), "is open"));
}

TEST_CASE("the limit of descriptors is raised, and a limit that is too low causes a warning") {
  acc::test::Program few({"/bin/sh", "-c",
                          "ulimit -Sn 50; ulimit -Hn 100; exec " + std::string(test::kDaemon) +
                              " --port 0 --max_connections 1000"});
  few.wait_for_text(
      "max_connections is 1000, but this process may open at most 100 file descriptors");
  for (const std::string fitting : {" --max_connections 100", ""}) {
    CAPTURE(fitting);
    acc::test::Program enough({"/bin/sh", "-c",
                               "ulimit -Sn 50; ulimit -Hn 200; exec " + std::string(test::kDaemon) +
                                   " --port 0" + fitting});
    enough.wait_for_text("listening on");
    rlimit limit{};
    REQUIRE(::prlimit(enough.pid(), RLIMIT_NOFILE, nullptr, &limit) == 0);
    CHECK(limit.rlim_cur == 200);
    enough.signal(SIGTERM);
    CHECK(enough.wait() == 0);
    CHECK(enough.err().empty());
  }
}

}  // namespace
}  // namespace acc::rendezvous
