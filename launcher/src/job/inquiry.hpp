// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/agent.hpp"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace acc::launcher::job {

/// Asks rendezvous servers whether they would accept a machine, without taking a place there:
/// static ranks, by machine 0, to find another machine 0 of its job.
class Inquiry {
 public:
  using MakeAgent = std::function<std::unique_ptr<rendezvous::Agent>()>;

  /// `make_agent` creates the agent of one question.
  Inquiry(boost::asio::io_context& io, MakeAgent make_agent)
      : make_agent_(std::move(make_agent)), pause_(io) {}

  /// Asks the server at an address once.
  boost::asio::awaitable<void> ask(std::string host, std::uint16_t port,
                                   rendezvous::Machine machine);
  /// Asks every second until `stop` or a refusal, which it reports to `on_refusal`.
  boost::asio::awaitable<void> ask_repeatedly(std::string host, std::uint16_t port,
                                              rendezvous::Machine machine,
                                              std::function<void()> on_refusal);
  void stop();
  /// Closes the connection too.
  void close();
  /// Returns the error of a server that refuses the machine; null if none does.
  [[nodiscard]] const std::exception_ptr& refusal() const noexcept { return refusal_; }

 private:
  MakeAgent make_agent_;
  std::unique_ptr<rendezvous::Agent> agent_;
  boost::asio::steady_timer pause_;
  bool is_stopped_ = false;
  std::exception_ptr refusal_;
};

}  // namespace acc::launcher::job
