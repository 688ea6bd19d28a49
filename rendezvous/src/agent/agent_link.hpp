// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/dial.hpp"
#include "rounds/messages.hpp"
#include "secure/secure_link.hpp"

#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace acc::rendezvous {

/// The agent's end of a connection to the server: sends and receives messages, sends heartbeats,
/// and detects the loss of the server.
///
/// Life cycle: constructed with a connected socket, `start`, then messages in both directions until
/// either `close` is called or `on_end` reports the loss; never both. Pending operations keep it
/// alive with a shared_ptr. All calls are made on the socket's executor.
class AgentLink : public std::enable_shared_from_this<AgentLink> {
 public:
  using Milliseconds = std::chrono::milliseconds;
  struct Events {
    std::function<void(rounds::ServerMessage)> on_message;  ///< never called after `close`
    std::function<void(const std::string& why)> on_end;     ///< at most once; never after `close`
    /// The server refuses the token; `on_end` follows.
    std::function<void(const std::string& why)> on_refusal{};
  };

  /// `silence_limit` is the heartbeat timeout until `keep_alive` sets the one that the server
  /// chose.
  /// `comes_back`: if it ends the link because of silence, it tells the server with Away.
  /// `encryption`: null for a plain connection. If the server is refused, or refuses for
  /// another reason than the token, `on_message` receives Dropped with `config`, as if the server
  /// had sent it.
  AgentLink(boost::asio::ip::tcp::socket socket, std::unique_ptr<secure::SecureLink> encryption,
            Milliseconds silence_limit, bool comes_back, Events events);

  /// Starts to read.
  void start();
  /// Sends a heartbeat every `beat_interval`, and ends the link if nothing arrives for
  /// `silence_limit`.
  void keep_alive(Milliseconds beat_interval, Milliseconds silence_limit, bool comes_back);
  /// Queues a message. The first one is preceded by the protocol's hello.
  void send(const rounds::AgentMessage& message);
  /// Number of bytes that are not in the kernel's send buffer yet.
  [[nodiscard]] std::size_t backlog() const noexcept { return sending_.size() + unsent_.size(); }
  /// Completes when all messages are in the kernel's send buffer, after `limit`, or when the link
  /// has ended.
  boost::asio::awaitable<void> flushed(Milliseconds limit);
  void close() noexcept;

 private:
  void read();
  void queue(std::string_view bytes);
  void decrypt(std::size_t count);
  void take_messages();
  void write();
  void beat();
  void send_away();
  void end(const std::string& why);

  boost::asio::ip::tcp::socket socket_;
  std::unique_ptr<secure::SecureLink> encryption_;
  boost::asio::steady_timer beat_;
  boost::asio::steady_timer flush_;
  Milliseconds beat_interval_;
  Milliseconds silence_limit_;
  bool comes_back_;
  std::chrono::steady_clock::time_point heard_at_;  // last time bytes arrived
  Events events_;
  std::string received_;  // buffer of the read in progress
  std::string incoming_;  // received, not decoded: the beginning of a message
  std::string unsent_;    // queued for the next write
  std::string sending_;   // being written; must not change until the write completes
};

}  // namespace acc::rendezvous
