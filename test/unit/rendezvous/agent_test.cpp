// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/agent.hpp"

#include "agent/agent_link.hpp"
#include "support.hpp"

#include <array>
#include <functional>

namespace acc::rendezvous {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using namespace std::chrono_literals;

TEST_CASE("a closed link reports nothing, not even messages that were received before") {
  asio::io_context io;
  tcp::acceptor acceptor(io, {asio::ip::address_v4::loopback(), 0});
  tcp::socket socket(io);
  socket.connect(acceptor.local_endpoint());
  std::string frame;
  rounds::encode(rounds::ServerMessage(rounds::Waiting{"for others"}), frame);
  tcp::socket other_end = acceptor.accept();
  asio::write(other_end, asio::buffer(frame));
  socket.wait(tcp::socket::wait_read);

  bool has_told = false;
  const auto link = std::make_shared<AgentLink>(
      std::move(socket), nullptr, 1h, false,
      AgentLink::Events{.on_message = [&](const rounds::ServerMessage&) { has_told = true; },
                        .on_end = [&](const std::string&) { has_told = true; }});
  link->start();
  link->close();
  io.run();
  CHECK_FALSE(has_told);
}

TEST_CASE("a link is flushed when all of a long message is sent, whatever is sent meanwhile") {
  asio::io_context io;
  tcp::acceptor acceptor(io, {asio::ip::address_v4::loopback(), 0});
  tcp::socket socket(io);
  socket.connect(acceptor.local_endpoint());
  socket.set_option(tcp::socket::send_buffer_size(1 << 16));
  tcp::socket other_end = acceptor.accept();
  const auto link =
      std::make_shared<AgentLink>(std::move(socket), nullptr, 1h, false, AgentLink::Events{});
  link->start();
  const std::string report(4 << 20, 'x');  // more than the buffers of the sockets
  link->send(rounds::FailureReport{report});
  bool is_flushed = false;
  asio::co_spawn(io, link->flushed(1h), [&](const std::exception_ptr&) {
    is_flushed = true;
    link->close();
  });
  io.poll();
  link->send(rounds::Beat{});
  io.poll();
  CHECK_FALSE(is_flushed);
  std::string received;
  std::array<char, 1 << 16> part{};
  std::function<void()> read = [&] {
    other_end.async_read_some(asio::buffer(part), [&](const auto& error, std::size_t count) {
      received.append(part.data(), count);
      if (!error) {
        read();
      }
    });
  };
  read();
  io.run();
  CHECK(is_flushed);
  CHECK(received.size() >= rounds::kHello.size() + 4 + 1 + 4 + report.size() + 4 + 1);
}

TEST_CASE("an agent may be destroyed in its own callback") {
  asio::io_context io;
  Server server(io, "127.0.0.1", 0);
  std::unique_ptr<Agent> agent;
  const std::string text = "longer than what a string holds without the heap";
  std::string said;
  Agent::Events events;
  events.on_progress = [&agent, &said, text](const std::string&) {
    agent.reset();
    said = text;
  };
  agent =
      std::make_unique<Agent>(io.get_executor(), "job", Terms{.num_machines = 2, .min_machines = 2},
                              JobTimes{}, std::move(events));
  Machine here;
  here.host = "here";
  here.store_port = 1;
  std::optional<Round> round;
  asio::co_spawn(io, agent->join("127.0.0.1", server.port(), here),
                 [&](const std::exception_ptr& failure, std::optional<Round> joined) {
                   CHECK_FALSE(failure);
                   round = std::move(joined);
                   server.stop();
                 });
  io.run();
  CHECK(said == text);
  CHECK_FALSE(round);
}

}  // namespace
}  // namespace acc::rendezvous
