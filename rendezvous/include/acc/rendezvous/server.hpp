#pragma once

#include "acc/rendezvous/listener.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace boost::asio {
class io_context;
}

namespace acc::rendezvous {

struct ServerOptions {
  /// A connection that has not shown by then that it knows a language is closed.
  std::chrono::milliseconds handshake_timeout{30'000};
  /// How long `stop` lets clients take what they were already answered.
  std::chrono::milliseconds stop_timeout{2'000};
  /// A store without any client for so long forgets its keys. 0: never.
  std::chrono::milliseconds idle_timeout{0};
  /// Whether agents (agent.hpp) may meet here; else there is a store only.
  bool forms_rounds = true;

  /// Beyond it, connections are closed as soon as they are accepted.
  std::size_t max_connections = 65'536;
  /// The client that would break one of these limits loses its connection, and nobody else does.
  /// Bytes are those of keys, values, queues and names that are waited for, and of jobs with their
  /// machines and reports, with what it takes to keep them; a frame is one request, or one reply.
  std::size_t max_keys = 10'000'000;
  std::size_t max_bytes = std::size_t{4} << 30;
  std::size_t max_frame_bytes = std::size_t{512} << 20;
  /// Of all clients together: requests that are not complete and replies that are not read. Beyond
  /// it the client that has most of them loses its connection.
  std::size_t max_buffered_bytes = std::size_t{1} << 30;
  /// Requests of a client wait while this much of its replies is unread.
  std::size_t max_unread_bytes = std::size_t{4} << 20;
};

/// Serves torch's TCPStore protocol (all commands of PyTorch 2.13) and the agents that form the
/// rounds of jobs (job.hpp), from `io`. A client's first byte says which it is.
///
/// Lives on the one thread that runs `io`, and must not outlive it. A client that breaks the
/// protocol loses its own connection only.
class Server {
 public:
  /// Takes its clients from `listeners`, of which there is at least one.
  Server(boost::asio::io_context& io, std::vector<Listener> listeners, ServerOptions options = {});
  /// Listens on one host: see listen_on, which may ask name servers and block so long.
  Server(boost::asio::io_context& io, const std::string& host, std::uint16_t port,
         ServerOptions options = {});
  /// Closes everything at once.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// The port that was bound; 0 where there are Unix sockets only.
  [[nodiscard]] std::uint16_t port() const noexcept;
  [[nodiscard]] std::size_t num_connections() const noexcept;
  [[nodiscard]] std::size_t num_jobs() const noexcept;
  [[nodiscard]] std::size_t num_keys() const noexcept;
  /// Machines of a job disagree, and some have not come yet: they will hear it when they do, for as
  /// long as JobTimes::close says.
  [[nodiscard]] bool is_refusing() const noexcept;

  /// For the workers' next attempt, once the last ones have ended: forgets every key and closes the
  /// connections of all store clients, so that nothing a dead worker sent can come late.
  void renew_store();

  /// Takes no more connections, but while it `is_refusing`, and no new job. Serves the agents until
  /// the last one has gone, which `done` is told; at once where there is none. `done` may destroy
  /// the server, and is not called when it is destroyed before.
  void retire(std::function<void()> done);

  /// Takes no more requests or connections, sends what is already answered, then closes; agents are
  /// let go first, for so long as the options say. `io` runs out of this server's work when that is
  /// done.
  void stop();

  /// Which process listens on a TCP port of this machine: "python3 (pid 123)". Nothing where no
  /// process does.
  static std::optional<std::string> port_owner(std::uint16_t port);

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace acc::rendezvous
