// SPDX-License-Identifier: Apache-2.0
// Measures how long the server takes to form a round. Simulates all agents of one job on one
// thread.
//
// agents_load PORT AGENTS [TOKEN_FILE]
//     first_ms: time from the first connect until every agent has received Formed of round 0.
//     next_ms:  time from the loss of one agent's connection until all others have received Ends,
//               reported, rejoined and received Formed of round 1.
//
// With a token, each agent connects by TLS and proves it.
//
// Prints one JSON object; times are in milliseconds.
#include "loopback.hpp"
#include "rounds/messages.hpp"
#include "secure/secure_link.hpp"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace acc::rendezvous;
using acc::bench::checked;
using acc::bench::fail;
using namespace acc::rendezvous::rounds;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPatience{120'000};
constexpr std::uint16_t kStorePort = 29500;  // never used, but a server refuses 0

struct SimulatedAgent {
  acc::UniqueFd socket;
  std::string incoming;
  std::string unsent;
  std::unique_ptr<secure::SecureLink> encryption;  // null: plain
  int round = -1;

  void say(std::string_view bytes) {
    if (encryption) {
      encryption->send(bytes, unsent);
    } else {
      unsent += bytes;
    }
  }
};

class Load {
 public:
  Load(std::uint16_t port, int agents, std::shared_ptr<const ClientSecurity> security)
      : port_(port), security_(std::move(security)), agents_(static_cast<std::size_t>(agents)) {
    epoll_.reset(checked(epoll_create1(EPOLL_CLOEXEC), "epoll_create1"));
  }

  void enter_all() {
    for (std::size_t i = 0; i < agents_.size(); ++i) {
      enter(i);
    }
  }

  void lose_one() {
    agents_.back().socket.reset();
    agents_.pop_back();
  }

  void await_round(int round) {
    while (in_round_ < agents_.size() || reached_ < round) {
      std::array<epoll_event, 256> events;
      const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                   static_cast<int>(kPatience.count()));
      if (count <= 0) {
        fail(fmt::format("round {} was not formed: {} of {} agents are in it", round, in_round_,
                         agents_.size()));
      }
      for (int i = 0; i < count; ++i) {
        const epoll_event& event = events[static_cast<std::size_t>(i)];
        serve(agents_[event.data.u64], event.events);
      }
    }
    in_round_ = 0;
  }

 private:
  void enter(std::size_t index) {
    SimulatedAgent& agent = agents_[index];
    agent.socket = acc::bench::connect_to(port_);
    const int count = static_cast<int>(agents_.size());
    Enter hello;
    hello.run_id = "bench";
    hello.terms = {.num_machines = count, .min_machines = std::max(1, count - 1)};
    hello.times.heartbeat = kPatience;
    hello.machine.host = fmt::format("node{}", index);
    hello.machine.address = "127.0.0.1";
    hello.machine.store_port = kStorePort;
    hello.machine.pid = getpid();
    if (security_) {
      agent.encryption = std::make_unique<secure::SecureLink>(
          security_, "127.0.0.1", secure::Admission{Role::agent, hello.run_id});
      agent.encryption->start(agent.unsent);
    }
    agent.say(kHello);
    say(agent, hello);
    epoll_event event{.events = EPOLLIN | EPOLLOUT | EPOLLET, .data = {.u64 = index}};
    checked(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, agent.socket.get(), &event), "epoll_ctl");
  }

  void serve(SimulatedAgent& agent, std::uint32_t events) {
    if ((events & EPOLLOUT) != 0) {
      flush(agent);
    }
    if ((events & EPOLLIN) == 0) {
      return;
    }
    std::array<char, 16384> bytes;
    ssize_t count = 0;
    while ((count = recv(agent.socket.get(), bytes.data(), bytes.size(), 0)) > 0) {
      const std::string_view received(bytes.data(), static_cast<std::size_t>(count));
      if (agent.encryption) {
        agent.encryption->receive(received, agent.incoming, agent.unsent);
      } else {
        agent.incoming += received;
      }
    }
    if (count == 0) {
      fail("the server closed a connection");
    }
    std::string_view unread = agent.incoming;
    while (const auto message = take_server_message(unread)) {
      hear(agent, *message);
    }
    agent.incoming.erase(0, agent.incoming.size() - unread.size());
    flush(agent);
  }

  static void say(SimulatedAgent& agent, const AgentMessage& message) {
    std::string frame;
    encode(message, frame);
    agent.say(frame);
  }

  void hear(SimulatedAgent& agent, const ServerMessage& message) {
    if (const auto* formed = std::get_if<Formed>(&message)) {
      agent.round = reached_ = formed->round.round;
      ++in_round_;
    } else if (std::holds_alternative<Ends>(message)) {
      say(agent, Report{});
    } else if (const auto* settled = std::get_if<Settled>(&message);
               settled != nullptr && settled->round_result.next == RoundResult::Next::next_round) {
      say(agent, Rejoin{kStorePort});
    } else if (const auto* dropped = std::get_if<Dropped>(&message)) {
      fail(dropped->reason);
    }
  }

  static void flush(SimulatedAgent& agent) {
    while (!agent.unsent.empty()) {
      const ssize_t count =
          send(agent.socket.get(), agent.unsent.data(), agent.unsent.size(), MSG_NOSIGNAL);
      if (count < 0) {
        return;  // the rest is sent when the socket is writable
      }
      agent.unsent.erase(0, static_cast<std::size_t>(count));
    }
  }

  std::uint16_t port_;
  std::shared_ptr<const ClientSecurity> security_;
  acc::UniqueFd epoll_;
  std::vector<SimulatedAgent> agents_;
  std::size_t in_round_ = 0;
  int reached_ = -1;
};

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) {
    fail("expected PORT AGENTS [TOKEN_FILE]");
  }
  Load load(static_cast<std::uint16_t>(std::atoi(argv[1])), std::atoi(argv[2]),
            argc == 4 ? ClientSecurity::make(Tokens::read(argv[3]), {}) : nullptr);
  auto start = Clock::now();
  load.enter_all();
  load.await_round(0);
  const double first = milliseconds_since(start);
  start = Clock::now();
  load.lose_one();
  load.await_round(1);
  fmt::print("{{\"first_ms\": {:.2f}, \"next_ms\": {:.2f}}}\n", first, milliseconds_since(start));
}
