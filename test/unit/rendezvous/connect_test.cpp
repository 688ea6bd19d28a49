// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/tcp_store.hpp"
#include "impostor.hpp"
#include "support.hpp"

#include <boost/asio/local/stream_protocol.hpp>
#include <dlfcn.h>
#include <netdb.h>

#include <condition_variable>
#include <cstring>
#include <mutex>

namespace acc::rendezvous {
namespace {

using test::contains;
using test::error_of;
using test::Impostor;
using test::kSoon;
using test::ServerThread;
using namespace std::chrono_literals;
using boost::asio::ip::tcp;

/// Replaces getaddrinfo in this program: "slow.test" has no answer until it is released.
struct Names {
  std::mutex mutex;
  std::condition_variable changed;
  bool slow_may_answer = false;
  int asked_for_slow = 0;

  void ask_for_slow() {
    std::unique_lock lock(mutex);
    ++asked_for_slow;
    changed.notify_all();
    changed.wait(lock, [this] { return slow_may_answer; });
  }
  void await_question() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return asked_for_slow > 0; });
  }
  void let_slow_answer() {
    const std::lock_guard lock(mutex);
    slow_may_answer = true;
    changed.notify_all();
  }
};

Names resolver;

/// A port of 127.0.0.2 at which connects time out, because its listen queue is full.
class Silence {
 public:
  explicit Silence(std::uint16_t port)
      : acceptor_(io_, {boost::asio::ip::make_address("127.0.0.2"), port}) {
    acceptor_.listen(0);
    queued_.connect(acceptor_.local_endpoint());
  }

 private:
  boost::asio::io_context io_;
  tcp::acceptor acceptor_;
  tcp::socket queued_{io_};
};

}  // namespace
}  // namespace acc::rendezvous

/// "two.test" has the addresses 127.0.0.2 and 127.0.0.1, in this order.
extern "C" int getaddrinfo(const char* node, const char* service, const addrinfo* hints,
                           addrinfo** result) {
  using Function = int (*)(const char*, const char*, const addrinfo*, addrinfo**);
  static const auto real = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "getaddrinfo"));
  const std::string name = node != nullptr ? node : "";
  const bool is_name = hints == nullptr || (hints->ai_flags & AI_NUMERICHOST) == 0;
  if (name == "slow.test" && is_name) {
    acc::rendezvous::resolver.ask_for_slow();
    return EAI_AGAIN;
  }
  if (name != "two.test" || !is_name) {
    return real(node, service, hints, result);
  }
  if (const int error = real("127.0.0.2", service, hints, result); error != 0) {
    return error;
  }
  return real("127.0.0.1", service, hints, &(*result)->ai_next);
}

namespace acc::rendezvous {
namespace {

TEST_CASE("a name look-up without an answer ends at the deadline and on a stop request") {
  const std::string error = error_of([] { TcpStore("slow.test", 29500, 20ms); });
  CAPTURE(error);
  CHECK(contains(error, "timeout: cannot reach the store at slow.test:29500"));
  CHECK(contains(error, "the name 'slow.test' was not resolved"));

  std::stop_source stop;
  std::jthread stopper([&] {
    resolver.await_question();
    stop.request_stop();
  });
  CHECK(contains(error_of([&] { TcpStore("slow.test", 29500, kSoon, {.stop = stop.get_token()}); }),
                 "connection: store at slow.test:29500: stopped on request"));
  resolver.let_slow_answer();
}

TEST_CASE("an unknown name is looked up again until the deadline, and the error names it") {
  CHECK(
      contains(error_of([] { TcpStore("nowhere.invalid", 29500, 500ms); }),
               "timeout: cannot reach the store at nowhere.invalid:29500 within 500 ms: no address "
               "for 'nowhere.invalid': "));
}

TEST_CASE("all addresses of a name are tried") {
  ServerThread server;
  std::optional<Silence> silence;
  SUBCASE("the first refuses") {}
  SUBCASE("the first never answers") {
    silence.emplace(server.port());
  }
  TcpStore("two.test", server.port(), kSoon).ping();
}

TEST_CASE("a server that accepts connections and sends nothing is tried again") {
  boost::asio::io_context io;
  std::optional<tcp::acceptor> mute(std::in_place, io,
                                    tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0));
  const std::uint16_t port = mute->local_endpoint().port();
  std::jthread serving([&] {
    const tcp::socket silent = mute->accept();
    mute.reset();
    const Server server(io, "127.0.0.1", port);
    io.run();
  });
  TcpStore("127.0.0.1", port, kSoon, {.attempt_timeout = 50ms}).ping();
  io.stop();
}

TEST_CASE("a server that resets connections is tried again") {
  boost::asio::io_context io;
  tcp::acceptor acceptor(io, {boost::asio::ip::address_v4::loopback(), 0});
  std::jthread server([&] {
    for (int i = 0; i < 3; ++i) {
      tcp::socket socket = acceptor.accept();
      socket.set_option(boost::asio::socket_base::linger(true, 0));
    }
    tcp::socket socket = acceptor.accept();
    Impostor::greet(socket);
    Impostor::read_to_end(socket);
  });
  const TcpStore store("127.0.0.1", acceptor.local_endpoint().port(), kSoon);
}

TEST_CASE("a host may be a Unix socket") {
  const std::string path = "/tmp/acc_connect_test_" + std::to_string(getpid());
  boost::asio::io_context io;
  boost::asio::local::stream_protocol::acceptor acceptor(io, {path});
  std::jthread server([&] {
    auto socket = acceptor.accept();
    std::string hello(10, '\0');
    boost::asio::read(socket, boost::asio::buffer(hello));
    boost::asio::write(socket, boost::asio::buffer(hello.substr(6)));
  });
  {
    TcpStore store("unix:" + path, 0, kSoon);
    server.join();
    CHECK(contains(error_of([&] { store.ping(); }), "store at unix:" + path + ": "));
  }
  unlink(path.c_str());
  CHECK(contains(error_of([&] { TcpStore("unix:" + path, 0, 20ms); }),
                 "timeout: cannot reach the store at unix:" + path));
  CHECK(contains(error_of([] { TcpStore("unix:" + std::string(200, 'x'), 0, kSoon); }),
                 "invalid_argument: "));
}

TEST_CASE("a host may be an IPv6 address") {
  ServerThread server({}, "::1");
  TcpStore("::1", server.port(), kSoon).ping();
  CHECK(contains(error_of([] { TcpStore("::1", 1, 1ms); }), "the store at [::1]:1 "));
}

TEST_CASE("a stop request ends the attempts to connect") {
  std::stop_source stop;
  boost::asio::io_context io;
  tcp::acceptor acceptor(io, {boost::asio::ip::address_v4::loopback(), 0});
  std::jthread server([&] {
    tcp::socket silent = acceptor.accept();
    stop.request_stop();
    Impostor::read_to_end(silent);
  });
  CHECK(contains(error_of([&] {
                   TcpStore("127.0.0.1", acceptor.local_endpoint().port(), kSoon,
                            {.stop = stop.get_token()});
                 }),
                 "connection: store at 127.0.0.1:"));
}

}  // namespace
}  // namespace acc::rendezvous
