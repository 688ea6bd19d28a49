// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/board.hpp"
#include "acc/rendezvous/etcd_address.hpp"
#include "acc/rendezvous/listener.hpp"
#include "acc/rendezvous/security.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace boost::asio {
class io_context;
}

namespace acc::rendezvous {

/// Time and memory limits of a Server.
struct ServerOptions {
  /// A connection that has not completed its protocol's handshake by then is closed.
  std::chrono::milliseconds handshake_timeout{30'000};
  /// Time that `stop` gives clients to read the replies that are already queued for them.
  std::chrono::milliseconds stop_timeout{2'000};
  /// The store deletes its keys after this time without any connection. 0: never.
  std::chrono::milliseconds idle_timeout{0};
  /// True: also serves agents (agent.hpp) and forms rounds. False: store only.
  bool forms_rounds = true;
  /// True: serves a store.
  bool serves_store = true;
  /// What HTTP clients are shown (docs/api.md). Null: a server that forms rounds makes its own, any
  /// other one answers no HTTP.
  std::shared_ptr<Board> board{};
  /// Level of the log lines about what happens in jobs: info if true, else debug.
  bool logs_jobs = false;
  /// Folder of a log from which a server recovers keys, queues and jobs after this process was
  /// killed. Empty: none. One server at a time can use it.
  std::filesystem::path state_dir{};
  /// False: replies wait until the kernel has the log. True: until the disk has it.
  bool syncs = true;
  /// Instead of `state_dir`: the log is in etcd, for several servers. One of them leads; the others
  /// stand by, serve nobody, and tell agents so. When the leader is lost, another one recovers.
  std::optional<EtcdAddress> etcd{};
  /// With `etcd`: name of this server for agents of others, and for people.
  std::string address{};

  /// Further connections are closed as soon as they are accepted.
  std::size_t max_connections = 65'536;
  // A client that would exceed one of the next three limits loses its connection; other clients are
  // not affected.
  /// Number of keys in the store.
  std::size_t max_keys = 10'000'000;
  /// Memory of keys, values, queues, names that clients wait for, jobs, machines, reports and the
  /// state of ranks (a quarter), including an estimate of the containers' overhead.
  std::size_t max_bytes = std::size_t{4} << 30;
  /// Bytes of one frame: one request or one reply.
  std::size_t max_frame_bytes = std::size_t{512} << 20;
  /// Bytes of incomplete requests and unread replies of all clients together. When it is exceeded,
  /// the client with the largest share loses its connection.
  std::size_t max_buffered_bytes = std::size_t{1} << 30;
  /// Requests of a client are not read or served while more than this many bytes of its replies are
  /// unread (back-pressure; the client stays connected).
  std::size_t max_unread_bytes = std::size_t{4} << 20;
  /// Percentage of max_connections, max_keys and max_bytes that the clients of one address, or of
  /// another user of this machine, may use.
  int max_peer_percent = 50;
  /// Wrong proofs within a minute after which an address or a user has to wait (Peers).
  int max_failed_proofs = 20;

  /// Null: no TLS, and every client is admitted.
  std::shared_ptr<const ServerSecurity> security{};
};

/// Rendezvous server: serves PyTorch's TCPStore protocol (all commands of PyTorch 2.13), forms the
/// rounds of jobs for agents (job.hpp), and shows them by HTTP, on the same port. The first byte of
/// a connection selects the protocol (docs/protocol.md).
///
/// With ServerOptions::security that has tokens, clients need TLS and a proof of the token, except
/// on a Unix socket if they run as the server's user or as root.
///
/// Life cycle: serving, then either `stop` (shut down within ServerOptions::stop_timeout) or
/// `retire` (serve the agents of running jobs to their end); the destructor closes everything at
/// once.
///
/// With ServerOptions::state_dir, no client sees the effect of a change before the change is in the
/// log. If the log cannot be written, the event loop's `run` throws, and no reply is sent any more.
///
/// Runs on the one thread that runs `io`; all calls must come from that thread, and the server must
/// not outlive `io`. A client that violates the protocol loses only its own connection.
class Server {
 public:
  /// Accepts clients from `listeners`, at least one. Recovers the state first; throws Error if the
  /// log cannot be used.
  Server(boost::asio::io_context& io, std::vector<Listener> listeners, ServerOptions options = {});
  /// Listens on one host with listen_on, which may block on a name look-up.
  Server(boost::asio::io_context& io, const std::string& host, std::uint16_t port,
         ServerOptions options = {});
  /// Closes all listeners and connections at once, without sending queued replies.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// Returns the bound TCP port; 0 if there are only Unix sockets.
  [[nodiscard]] std::uint16_t port() const noexcept;
  [[nodiscard]] std::size_t num_connections() const noexcept;
  [[nodiscard]] std::size_t num_jobs() const noexcept;
  [[nodiscard]] std::size_t num_keys() const noexcept;
  /// False while it stands by (ServerOptions::etcd).
  [[nodiscard]] bool leads() const noexcept;
  /// True if machines of some job disagree and not all of them have connected yet. Each one that
  /// connects within JobTimes::close is sent the reason.
  [[nodiscard]] bool is_refusing() const noexcept;

  /// Replaces the limits, the token and the certificate (not forms_rounds and where the log is).
  /// Connected clients stay.
  void reconfigure(const ServerOptions& options);

  /// Prepares the store for the workers of the next round, after those of the last one have ended:
  /// deletes every key and closes the connections of all store clients. Without the latter, bytes
  /// that a dead worker sent could still arrive and write old values.
  void renew_store();

  /// Accepts no new jobs and, unless `is_refusing`, no new connections, but continues to serve the
  /// connected agents. Calls `done` when the last agent has disconnected (at once if there is none)
  /// and the server is not refusing any more. `done` may destroy the server; it is not called if
  /// the server is destroyed earlier.
  void retire(std::function<void()> done);

  /// Stops accepting connections and requests, sends the queued replies, then closes each
  /// connection, at the latest after ServerOptions::stop_timeout. The connection of an agent stays
  /// until the agent closes it, so that its last message is not lost. The server then has no
  /// pending work in `io`.
  void stop();

  /// Returns the process that listens on a TCP port of this machine, as "python3 (pid 123)";
  /// nothing if the port is free. Reads /proc.
  static std::optional<std::string> port_owner(std::uint16_t port);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace acc::rendezvous
