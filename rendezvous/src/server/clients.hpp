// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/listener.hpp"
#include "acc/rendezvous/server.hpp"
#include "net/rate_limiter.hpp"
#include "server/connection.hpp"
#include "server/peers.hpp"
#include "server/ready_set.hpp"
#include "server/recorded_changes.hpp"
#include "server/turns.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace acc::rendezvous {

/// Accepts the clients of one listening socket, several per turn of the server.
class Acceptor final : public ReadySet::Watcher {
 public:
  /// Called with each client and its address.
  using Accepted = std::function<void(UniqueFd, const sockaddr_storage&)>;
  /// Called with errno when accept4 fails because descriptors or memory are used up (EMFILE,
  /// ENFILE, ENOMEM). The acceptor then ignores its socket until `resume`: the socket stays
  /// readable, so epoll would report it without end.
  using Exhausted = std::function<void(int error)>;

  /// Starts to accept at once. Throws Error(connection).
  Acceptor(Listener listener, ReadySet& set, Accepted accepted, Exhausted exhausted);
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  void ready(std::uint32_t events) override;
  void resume();

 private:
  Listener listener_;
  ReadySet& set_;
  Accepted accepted_;
  Exhausted exhausted_;
};

/// The clients of a server: accepts them within the limits of ServerOptions, lets them prove their
/// token, and ends those that exceed a limit. Owns the listening sockets, the connections with
/// their time limits, what is known of each peer, and the division of time among them (Turns). The
/// protocol of a client is chosen by the server (Calls::open).
class Clients final : private Connection::Owner {
 public:
  using Id = Connection::Id;

  struct Calls {
    /// See Connection::Owner::open. Not called for proofs of a token.
    std::function<std::unique_ptr<ProtocolHandler>(Id id, char first, const ClientFacts& facts)>
        open;
    /// A connection has closed.
    std::function<void(Id id)> closed;
    /// No client was connected for ServerOptions::idle_timeout.
    std::function<void()> idle;
    Turns::Calls turns;
  };

  /// `options` and `changes` must outlive it.
  Clients(boost::asio::io_context& io, std::vector<Listener> listeners,
          const ServerOptions& options, const RecordedChanges& changes, Calls calls);

  /// Begins to serve; see Turns::start.
  void start(std::weak_ptr<void> server);
  /// Takes over changed options.
  void reconfigure();
  /// Accepts no further connections.
  void stop_accepting() { acceptors_.clear(); }
  /// The same, for good: the server ends when the last connection has closed.
  void stop();
  [[nodiscard]] bool is_stopping() const noexcept { return is_stopping_; }
  /// After `stop`: ends the turns if all connections have closed.
  void end_if_stopped();

  [[nodiscard]] Turns& turns() noexcept { return turns_; }
  /// The bound TCP port; 0 if there are only Unix sockets.
  [[nodiscard]] std::uint16_t port() const noexcept { return port_; }
  [[nodiscard]] std::size_t size() const noexcept { return connections_.size(); }
  /// Bytes of incomplete requests and unread replies.
  [[nodiscard]] std::size_t num_buffered() const noexcept { return shared_.buffered; }
  /// Returns a copy of all ids, because closing a connection changes the connections.
  [[nodiscard]] std::vector<Id> ids() const;
  /// Later connections have at least this id.
  void skip_ids(Id first_free) noexcept { next_id_ = std::max(next_id_, first_free); }
  /// Returns an open connection; null if it is closed.
  [[nodiscard]] Connection* find(Id id);
  /// Returns a connection that is open.
  [[nodiscard]] Connection& at(Id id) { return *connections_.at(id); }
  void close(Id id);
  void close_all();

  /// Returns the part of a limit that one peer may use (ServerOptions::max_peer_percent).
  [[nodiscard]] std::size_t share_of(std::size_t limit) const;
  /// Counts a wrong token of a client, unless it was right earlier: then it is not a guess.
  void note_failure(Peer& peer, bool was_right);
  /// The store is empty: its keys are charged to no peer.
  void forget_keys() { peers_.forget_keys(); }
  void each_peer(const std::function<void(const Peer&)>& see) const { peers_.each(see); }

 private:
  void accept(UniqueFd client, const sockaddr_storage& address);
  [[nodiscard]] std::string refusal_of(const Peer& peer) const;
  void pause_accepting(const std::string& why);
  std::unique_ptr<ProtocolHandler> open_proof(Id id, const ClientFacts& facts);
  void watch_idleness();

  std::unique_ptr<ProtocolHandler> open(Id id, char first, const ClientFacts& facts) override;
  std::unique_ptr<secure::TlsChannel> encrypt(const Peer& peer) override;
  void admitted(Peer& peer) override;
  bool is_shut_out(Peer& peer) override;
  void finishing(Id id) override { shutdowns_.add(id); }
  void overfull() override;
  void closed(Id id) override;

  const ServerOptions& options_;
  Calls calls_;
  Turns turns_;
  Connection::SharedBuffers shared_;
  Turns::Connections connections_;  // open ones
  Id next_id_ = 0;                  // never reused
  Peers peers_;
  RateLimiter warnings_;  // about refused clients
  TimeLimit handshakes_;
  TimeLimit shutdowns_;
  Turns::Timer idle_timer_;
  Turns::Timer accept_timer_;       // kAcceptPause
  std::deque<Acceptor> acceptors_;  // a deque never moves its elements
  std::uint16_t port_ = 0;
  bool is_stopping_ = false;
};

}  // namespace acc::rendezvous
