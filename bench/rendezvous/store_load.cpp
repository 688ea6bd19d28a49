// SPDX-License-Identifier: Apache-2.0
// Load generator for store servers, used by rendezvous.py: many clients on one thread.
//
// store_load PORT mix CONNECTIONS IN_FLIGHT SECONDS PID
//     Each connection keeps IN_FLIGHT requests in flight: 40 % GET, 25 % SET (followed by a PING,
//     whose reply shows that the SET is done), 25 % ADD, 10 % WAIT for an existing key. PID is the
//     server's process id, for its CPU time.
// store_load PORT join CLIENTS add_wait|barrier
//     Measures the time from the first connect until all clients are released from a barrier. Each
//     client completes the handshake before it enters the barrier.
// store_load PORT hold CONNECTIONS
//     Keeps idle connections open until its standard input is closed.
// store_load PORT fill KEYS
//     Stores keys of 16 bytes with values of 32 bytes.
//
// Prints one JSON object when the measurement is complete.
#include "loopback.hpp"
#include "wire/frames.hpp"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace acc::rendezvous;
using acc::bench::checked;
using acc::bench::fail;
using wire::Opcode;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr int kKeys = 1024;
constexpr int kCounters = 64;
constexpr std::size_t kValueBytes = 32;
constexpr auto kPatience = std::chrono::seconds(60);
constexpr Seconds kWarmUp{0.3};

/// A request and the size of its reply in bytes; kSized: the reply is a length and that many bytes.
struct Command {
  static constexpr int kSized = -1;
  std::string bytes;
  int reply = 0;
};

Command command(const wire::Request& request, int reply) {
  Command made{"", reply};
  wire::encode(request, made.bytes);
  return made;
}

Command ping() {
  return command({.opcode = Opcode::ping, .number = 7}, 4);
}

Command hello() {
  Command made = command({.opcode = Opcode::validate, .number = wire::kMagic}, 0);
  made.bytes += ping().bytes;
  made.reply = 4;
  return made;
}

Command set(const std::string& key) {
  return command({.opcode = Opcode::set, .keys = {key}, .values = {std::string(kValueBytes, 'v')}},
                 0);
}

std::string key(int i) {
  return fmt::format("/bench/key{}", i);
}

/// The sequence of requests of `mix`, drawn once. Each connection starts at a different position of
/// it.
std::vector<Command> mixed_commands() {
  std::vector<Command> commands;
  std::mt19937 random(1);  // NOLINT: the same requests in every run
  for (int i = 0; i < 8192; ++i) {
    const std::string name = key(static_cast<int>(random() % kKeys));
    const auto kind = random() % 100;
    if (kind < 40) {
      commands.push_back(command({.opcode = Opcode::get, .keys = {name}}, Command::kSized));
    } else if (kind < 65) {
      commands.push_back({set(name).bytes + ping().bytes, 4});
    } else if (kind < 90) {
      const std::string counter = fmt::format("/bench/counter{}", random() % kCounters);
      commands.push_back(command({.opcode = Opcode::add, .keys = {counter}, .number = 1}, 8));
    } else {
      commands.push_back(command({.opcode = Opcode::wait, .keys = {name}}, 1));
    }
  }
  return commands;
}

/// One client: its unsent requests and its pending replies.
class Client {
 public:
  explicit Client(std::uint16_t port) : fd_(acc::bench::connect_to(port)) {}

  [[nodiscard]] int fd() const { return fd_.get(); }

  void ask(const Command& command, Clock::time_point now) {
    unsent_ += command.bytes;
    if (command.reply != 0) {
      pending_.push_back({command.reply, now});
    }
  }

  /// Sends as much as the socket accepts; false if bytes are left.
  bool flush() {
    while (!unsent_.empty()) {
      const ssize_t count = send(fd(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
      if (count < 0) {
        if (errno == EAGAIN || errno == ENOTCONN) {
          return false;
        }
        fail(fmt::format("send: errno {}", errno));
      }
      unsent_.erase(0, static_cast<std::size_t>(count));
    }
    return true;
  }

  /// Calls `done` for each complete reply, with its bytes and the time of its request.
  template <typename Done>
  void receive(Done&& done) {
    static std::array<char, 256 * 1024> buffer;
    const ssize_t count = recv(fd(), buffer.data(), buffer.size(), 0);
    if (count < 0 && errno == EAGAIN) {
      return;
    }
    if (count <= 0) {
      fail("the server has closed a connection");
    }
    std::string_view bytes(buffer.data(), static_cast<std::size_t>(count));
    if (!rest_.empty()) {
      rest_.append(bytes);
      bytes = rest_;
    }
    while (!pending_.empty()) {
      const auto [reply, since] = pending_.front();
      std::size_t size = static_cast<std::size_t>(reply);
      if (reply == Command::kSized) {
        size = bytes.size() < 8 ? 8 : 8 + static_cast<std::size_t>(wire::get_i64(bytes.data()));
      }
      if (bytes.size() < size) {
        break;
      }
      pending_.pop_front();
      done(bytes.substr(0, size), since);
      bytes.remove_prefix(size);
    }
    rest_ = std::string(bytes);
  }

 private:
  struct Pending {
    int reply;
    Clock::time_point since;
  };
  acc::UniqueFd fd_;
  std::string unsent_;
  std::string rest_;
  std::deque<Pending> pending_;
};

/// All clients, and an epoll set of their sockets.
class Clients {
 public:
  Clients(std::uint16_t port, int count) {
    for (int i = 0; i < count; ++i) {
      Client& client = clients_.emplace_back(port);
      client.ask(hello(), Clock::now());
      watch(client, EPOLL_CTL_ADD, EPOLLIN | EPOLLOUT);
    }
  }

  std::deque<Client>& all() { return clients_; }

  /// Runs the event loop until `stop` returns true. Calls `readable` for each client that can
  /// receive.
  template <typename Readable, typename Stop>
  void run(Readable&& readable, Stop&& stop) {
    std::array<epoll_event, 1024> events{};
    while (!stop()) {
      const int count = epoll_wait(epoll_.get(), events.data(), events.size(), 50);
      for (int i = 0; i < count; ++i) {
        const epoll_event& event = events[static_cast<std::size_t>(i)];
        auto& client = *static_cast<Client*>(event.data.ptr);
        if ((event.events & EPOLLIN) != 0) {
          readable(client);
        }
        if ((event.events & EPOLLOUT) != 0 && client.flush()) {
          watch(client, EPOLL_CTL_MOD, EPOLLIN);
        }
      }
    }
  }

  void flush(Client& client) {
    if (!client.flush()) {
      watch(client, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
    }
  }

  void greet() {
    std::size_t left = clients_.size();
    const auto limit = Clock::now() + kPatience;
    run([&](Client& client) { client.receive([&](auto, auto) { --left; }); },
        [&] {
          if (Clock::now() > limit) {
            fail(fmt::format("timeout: {} clients have no reply to the handshake", left));
          }
          return left == 0;
        });
  }

  /// Sends commands through one client and waits until the server has processed all of them.
  void ask(const std::vector<Command>& commands) {
    Client& client = clients_.front();
    for (const Command& each : commands) {
      client.ask(each, Clock::now());
    }
    client.ask(ping(), Clock::now());
    flush(client);
    bool done = false;
    run([&](Client& other) { other.receive([&](auto, auto) { done = true; }); },
        [&] { return done; });
  }

 private:
  void watch(Client& client, int what, std::uint32_t events) const {
    epoll_event event{.events = events, .data = {.ptr = &client}};
    checked(epoll_ctl(epoll_.get(), what, client.fd(), &event), "epoll_ctl");
  }

  acc::UniqueFd epoll_{checked(epoll_create1(0), "epoll_create1")};
  std::deque<Client> clients_;
};

/// Returns the CPU time of all threads of a process, in seconds.
double cpu_seconds(const std::string& pid) {
  double sum = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/" + pid + "/task")) {
    double nanoseconds = 0;
    std::ifstream(task.path() / "schedstat") >> nanoseconds;
    sum += nanoseconds / 1e9;
  }
  return sum;
}

double microseconds(std::vector<float>& latencies, double share) {
  const auto place = static_cast<std::ptrdiff_t>(share * static_cast<double>(latencies.size() - 1));
  std::nth_element(latencies.begin(), latencies.begin() + place, latencies.end());
  return latencies[static_cast<std::size_t>(place)] * 1e6;
}

void mix(std::uint16_t port, int connections, int in_flight, Seconds seconds,
         const std::string& pid) {
  Clients clients(port, connections);
  clients.greet();
  std::vector<Command> keys;
  keys.reserve(kKeys);
  for (int i = 0; i < kKeys; ++i) {
    keys.push_back(set(key(i)));
  }
  clients.ask(keys);

  const auto commands = mixed_commands();
  std::size_t next = 0;
  for (Client& client : clients.all()) {
    for (int i = 0; i < in_flight; ++i) {
      client.ask(commands[next++ % commands.size()], Clock::now());
    }
    clients.flush(client);
  }

  std::vector<float> latencies;
  latencies.reserve(1 << 22);
  Clock::time_point now;
  const auto step = [&](Client& client) {
    now = Clock::now();
    std::size_t replies = 0;
    client.receive([&](std::string_view, Clock::time_point since) {
      latencies.push_back(static_cast<float>(Seconds(now - since).count()));
      ++replies;
    });
    for (; replies > 0; --replies) {
      client.ask(commands[next++ % commands.size()], now);
    }
    clients.flush(client);
  };
  const auto run_for = [&](Seconds time) {
    const auto start = Clock::now();
    clients.run(step, [&] { return Clock::now() - start > time; });
    return Seconds(Clock::now() - start).count();
  };
  run_for(kWarmUp);
  latencies.clear();
  const double cpu_before = cpu_seconds(pid);
  const double wall = run_for(seconds);
  const double cpu = cpu_seconds(pid) - cpu_before;
  const auto count = static_cast<double>(latencies.size());
  fmt::print(R"({{"ops_per_s": {}, "ops_per_cpu_s": {}, "p50_us": {}, "p99_us": {}}})"
             "\n",
             count / wall, count / cpu, microseconds(latencies, 0.5),
             microseconds(latencies, 0.99));
}

void join(std::uint16_t port, int count, bool uses_barrier) {
  const Command barrier = command(
      {.opcode = Opcode::barrier, .keys = {fmt::format("/barrier{}", getpid())}, .number = count},
      1);
  const std::string counter = fmt::format("/count{}", getpid());
  const std::string last = fmt::format("/last{}", getpid());
  const Command add = command({.opcode = Opcode::add, .keys = {counter}, .number = 1}, 8);
  const Command wait = command({.opcode = Opcode::wait, .keys = {last}}, 1);
  const Command release = set(last);

  const auto start = Clock::now();
  Clients clients(port, count);
  int left = count;
  const auto step = [&](Client& client) {
    client.receive([&](std::string_view reply, Clock::time_point) {
      if (reply.size() == 4) {
        client.ask(uses_barrier ? barrier : add, start);
      } else if (reply.size() == 8) {
        if (wire::get_i64(reply.data()) == count) {
          client.ask(release, start);
        }
        client.ask(wait, start);
      } else {
        --left;
      }
    });
    clients.flush(client);
  };
  clients.run(step, [&] {
    if (Clock::now() - start > kPatience) {
      fail(fmt::format("timeout: {} clients were not released", left));
    }
    return left == 0;
  });
  fmt::print("{{\"join_ms\": {}}}\n", Seconds(Clock::now() - start).count() * 1e3);
}

void hold(std::uint16_t port, int connections) {
  Clients clients(port, connections);
  clients.greet();
  fmt::print("{{\"held\": {}}}\n", connections);
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
}

void fill(std::uint16_t port, int keys) {
  Clients clients(port, 1);
  clients.greet();
  constexpr int kAtOnce = 10'000;
  for (int done = 0; done < keys; done += kAtOnce) {
    std::vector<Command> batch;
    for (int i = done; i < std::min(keys, done + kAtOnce); ++i) {
      batch.push_back(set(fmt::format("/key{:012}", i)));
    }
    clients.ask(batch);
  }
  fmt::print("{{\"stored\": {}}}\n", keys);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  const auto is = [&](const char* mode, std::size_t count) {
    return args.size() == count + 2 && args[1] == mode;
  };
  const auto number = [&](std::size_t i) { return std::stoi(args.at(i)); };
  if (is("mix", 4)) {
    mix(static_cast<std::uint16_t>(number(0)), number(2), number(3), Seconds(std::stod(args[4])),
        args[5]);
  } else if (is("join", 2) && (args[3] == "add_wait" || args[3] == "barrier")) {
    join(static_cast<std::uint16_t>(number(0)), number(2), args[3] == "barrier");
  } else if (is("hold", 1)) {
    hold(static_cast<std::uint16_t>(number(0)), number(2));
  } else if (is("fill", 1)) {
    fill(static_cast<std::uint16_t>(number(0)), number(2));
  } else {
    fmt::print(stderr,
               "usage: store_load PORT mix CONNECTIONS IN_FLIGHT SECONDS PID | "
               "join CLIENTS add_wait|barrier | hold CONNECTIONS | fill KEYS\n");
    return 2;
  }
  return 0;
}
