// SPDX-License-Identifier: Apache-2.0
#include "job/inquiry.hpp"

#include "acc/base/error.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <chrono>
#include <utility>

namespace acc::launcher::job {
namespace asio = boost::asio;

asio::awaitable<void> Inquiry::ask(std::string host, std::uint16_t port,
                                   rendezvous::Machine machine) {
  agent_ = make_agent_();
  try {
    co_await agent_->ask(std::move(host), port, std::move(machine));
  } catch (const Error&) {
    refusal_ = std::current_exception();
  }
}

asio::awaitable<void> Inquiry::ask_repeatedly(std::string host, std::uint16_t port,
                                              rendezvous::Machine machine,
                                              std::function<void()> on_refusal) {
  constexpr std::chrono::seconds kInterval{1};
  while (!is_stopped_) {
    co_await ask(host, port, machine);
    if (is_stopped_) {  // a round was formed meanwhile, with this machine as machine 0
      co_return;
    }
    if (refusal_) {
      co_return on_refusal();
    }
    pause_.expires_after(kInterval);
    co_await pause_.async_wait(asio::as_tuple(asio::use_awaitable));
  }
}

void Inquiry::stop() {
  is_stopped_ = true;
  pause_.cancel();
}

void Inquiry::close() {
  stop();
  if (agent_) {
    agent_->close();
  }
}

}  // namespace acc::launcher::job
