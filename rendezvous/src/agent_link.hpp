#pragma once

#include "dial.hpp"
#include "rounds/messages.hpp"

#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace acc::rendezvous {

/// A connection that speaks the agent protocol: messages in and out, signs of life, and the moment
/// when it is no more.
class AgentLink : public std::enable_shared_from_this<AgentLink> {
 public:
  using Milliseconds = std::chrono::milliseconds;
  struct Events {
    std::function<void(rounds::ServerMessage)> on_message;  ///< not after `close`
    std::function<void(const std::string& why)> on_end;     ///< once; not after `close`
  };

  /// The other side may be silent for `silence_limit` until it says otherwise.
  AgentLink(boost::asio::ip::tcp::socket socket, Milliseconds silence_limit, Events events);

  void start();
  void keep_alive(Milliseconds beat_interval, Milliseconds silence_limit);
  void send(const rounds::AgentMessage& message);
  /// Completes when everything is with the kernel, or `limit` is over, or the link has ended.
  boost::asio::awaitable<void> flushed(Milliseconds limit);
  void close() noexcept;

 private:
  void read();
  void take_messages();
  void write();
  void beat();
  void end(const std::string& why);

  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer beat_;
  boost::asio::steady_timer flush_;
  Milliseconds beat_interval_;
  Milliseconds silence_limit_;
  std::chrono::steady_clock::time_point heard_at_;
  Events events_;
  std::string incoming_;
  std::string unsent_;
  std::string sending_;
};

}  // namespace acc::rendezvous
