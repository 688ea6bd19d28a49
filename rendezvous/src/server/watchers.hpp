// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/board.hpp"
#include "server/clients.hpp"
#include "server/http_session.hpp"
#include "watch/api.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>

namespace acc::rendezvous {

/// The HTTP clients: answers their requests from the board, and feeds those that receive a stream
/// of server-sent events. Closes those that are idle for ServerOptions::handshake_timeout. Also
/// writes the events of the board to the server's own messages.
class Watchers {
 public:
  using Id = Connection::Id;

  /// The board is that of `options`; without one it serves nobody. `facts` returns what the server
  /// says about itself, without num_connections and num_watchers.
  Watchers(Clients& clients, const ServerOptions& options,
           std::function<watch::ServerFacts()> facts);

  /// Creates the protocol handler of an HTTP client; null without a board.
  std::unique_ptr<ProtocolHandler> open(Id id, const ClientFacts& facts);
  void closed(Id id);
  [[nodiscard]] bool contains(Id id) const { return sessions_.contains(id); }
  /// Takes over changed options.
  void reconfigure() { idle_.change(options_.handshake_timeout); }

 private:
  bool may_ask(const watch::Request& request, const ClientFacts& facts);
  watch::Answer answer(Id id, const watch::Request& request);
  void close_if_idle(Id id);
  void on_event(const Board::Event& event);
  template <typename Make>
  void send_to_streams(Board::JobNumber job, const Make& make);
  void feed_streams();
  void send_changed_jobs();
  void end_streams();

  Clients& clients_;
  const ServerOptions& options_;
  std::shared_ptr<Board> board_;  // null: no HTTP
  std::function<watch::ServerFacts()> server_facts_;
  std::shared_ptr<Board::Listener> listener_;
  std::unordered_map<Id, HttpSession*> sessions_;  // owned by their connections
  std::unordered_map<Id, watch::Stream> streams_;  // those of sessions_ that are streams
  TimeLimit idle_;
  Turns::Timer stream_timer_;  // kStreamInterval, while there are streams
  std::unordered_map<Board::JobNumber, std::uint64_t> sent_changes_;  // to streams_
  int num_intervals_ = 0;
};

}  // namespace acc::rendezvous
