// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"
#include "acc/rendezvous/server.hpp"
#include "net/rate_limiter.hpp"
#include "secure/tls.hpp"
#include "server/peers.hpp"
#include "server/protocol_handler.hpp"
#include "server/ready_set.hpp"
#include "server/recorded_changes.hpp"
#include "store/key_table.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace acc::rendezvous {

class Turns;

/// Facts about a client that decide which protocols it may use.
struct ClientFacts {
  std::shared_ptr<Peer> peer;
  std::string binding{};                         ///< of its TLS channel; empty: it has none
  std::optional<secure::Admission> admission{};  ///< what it has proved
};

/// One client of the server: moves bytes between its socket and its protocol handler, which its
/// first byte selects. If that byte begins TLS, everything that follows is decrypted, and the first
/// decrypted byte selects the handler. A handler that is over (ProtocolHandler::admission) is
/// replaced by the one that the next byte selects.
///
/// Flow control: it reads at most one buffer per turn, and only while the client reads its replies
/// (ServerOptions::max_unread_bytes). Replies go out in the order of the requests. When the
/// requests of a turn have cost kTurnCost, the others wait for the next turn (Turns::resume_later).
///
/// Memory: requests are served in the shared receive buffer and replies collected in a shared
/// buffer (SharedBuffers). The connection owns memory for bytes only while a request is incomplete
/// or a reply unsent, so thousands of idle connections are cheap.
///
/// Life cycle: open; then either the client closes, or `finish` is called: no further requests are
/// read, queued replies are sent, and the connection closes as its shutdown mode says, at the
/// latest after ServerOptions::stop_timeout. Errors end it the same way (`refuse`). A closed
/// connection has no socket; all calls on it are harmless until the server destroys it at the end
/// of the turn.
class Connection final : public ReadySet::Watcher {
 public:
  using Id = KeyTable::WaiterId;

  /// Interface of the server to its connections.
  class Owner {
   public:
    /// Creates the protocol handler for a connection with this first byte; null: the client may
    /// not use the protocol, or it is unknown.
    virtual std::unique_ptr<ProtocolHandler> open(Id id, char first, const ClientFacts& facts) = 0;
    /// Creates the TLS channel of a client that begins with it; null: the server has no TLS. Throws
    /// Error(out_of_memory) if too many clients of the peer are in its handshake.
    virtual std::unique_ptr<secure::TlsChannel> encrypt(const Peer& peer) = 0;
    /// A client of this peer has proved the token.
    virtual void admitted(Peer& peer) = 0;
    /// True if the peer's wrong proofs forbid new connections at present.
    virtual bool is_shut_out(Peer& peer) = 0;
    /// The connection is finishing: call `close` after ServerOptions::stop_timeout.
    virtual void finishing(Id id) = 0;
    /// The limit ServerOptions::max_buffered_bytes is exceeded: call `give_up` on one connection.
    virtual void overfull() = 0;
    /// The connection is closed. This is its last call; it must not be destroyed before the end of
    /// the turn, because events and calls for it may be pending.
    virtual void closed(Id id) = 0;

   protected:
    ~Owner() = default;
  };

  /// Cost after which a connection has had its turn, in units of about 0.2 µs. A unit is the cost
  /// of a store request, or of kBytesPerUnit bytes.
  static constexpr std::size_t kTurnCost = 2048;
  static constexpr std::size_t kBytesPerUnit = 256;
  /// A part of the handshake of TLS takes a whole turn.
  static constexpr std::size_t kHandshakeCost = kTurnCost;
  /// Memory of a TLS connection whose client has not been admitted, in bytes: that of OpenSSL.
  static constexpr std::size_t kHandshakeBytes = std::size_t{64} * 1024;

  /// State shared by all connections of a server: buffers that they use in turn, and counters.
  static constexpr std::size_t kReceived = std::size_t{64} * 1024;
  struct SharedBuffers {
    Turns& turns;
    const ServerOptions& options;
    const RecordedChanges& changes;
    std::array<char, kReceived> received{};  // receive buffer of the connection being read
    std::string replies{};                   // reply buffer, lent to the connection being served
    std::string decrypted{};                 // of the connection being read
    std::size_t buffered = 0;  // bytes counted against ServerOptions::max_buffered_bytes
    RateLimiter refusals{};    // limits the rate of log lines about closed connections
  };

  /// Shutdown mode: how a connection ends after its last byte has been sent.
  enum class ShutdownMode : std::uint8_t {
    brief,   ///< closes at once
    patient  ///< shuts down its sending side and waits for the client to close: closing a socket
             ///< with unread input makes the kernel send RST, which can destroy sent data
  };

  /// Starts to read. `owner` and `shared` must outlive it. Throws Error(connection).
  Connection(UniqueFd socket, Id id, std::shared_ptr<Peer> peer, SharedBuffers& shared,
             Owner& owner);
  ~Connection() { close(); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void ready(std::uint32_t events) override;
  /// Serves the requests that wait since Turns::resume_later.
  void resume();
  /// From now on it is one of the ReadySet's urgent connections.
  void make_urgent();
  [[nodiscard]] bool is_urgent() const noexcept { return part_ == ReadySet::Part::urgent; }

  /// Queues bytes that are not a reply to a request; they are sent before the turn ends.
  void send(std::string_view bytes);
  /// True if the client has completed its protocol's handshake.
  [[nodiscard]] bool is_open() const noexcept { return handler_ && handler_->is_open(); }
  /// Stops reading requests; closes when all replies are sent.
  void finish(ShutdownMode mode);
  /// Sends queued bytes as far as the socket accepts them, and continues the shutdown that `finish`
  /// began.
  void flush();
  /// As `flush`, after Turns::hold. Unless it can send now, it calls that again.
  void flush_held() {
    flush_ = Flush::due;
    flush();
  }
  void close();
  /// This connection's share of SharedBuffers::buffered, in bytes.
  [[nodiscard]] std::size_t num_buffered() const noexcept { return counted_; }
  /// Closes the connection because it has more bytes buffered than any other.
  void give_up();
  [[nodiscard]] Peer& peer() const noexcept { return *facts_.peer; }

 private:
  enum class Phase : std::uint8_t {
    reading,     // reads and serves requests
    paused,      // serves no requests until the client reads its replies
    unfinished,  // has requests that wait for its turn (Turns::resume_later)
    finishing,   // reads no more requests, sends the last replies
    departing,   // has sent all and SHUT_WR, waits for the client to close
    broken       // the socket failed: closes without sending
  };
  enum class Flush : std::uint8_t {
    none,
    due,  // Turns::flush_later was called
    held  // unsent_ shows a change that is not in the log (Turns::hold)
  };

  template <typename Serve>
  void guarded(const Serve& serve);
  void advance(std::uint32_t events);
  void receive();
  void decrypt(std::string_view bytes);
  void take(std::string_view bytes);
  void choose(char first);
  void serve(std::string_view bytes);
  void step_through(std::string_view& bytes);
  void keep(std::string_view rest);
  void give_back();
  void write();
  void write_from(std::string& bytes, std::size_t& num_sent);
  void write_encrypted();
  void depart();
  void flush_soon();
  void watch();
  void hold();
  void show(std::uint64_t change);
  void refuse(const std::string& why, bool is_limit);
  void log_end(const std::string& why, bool is_limit);
  void count_buffered();
  void no_longer_pending();
  [[nodiscard]] bool is_finishing() const noexcept { return phase_ >= Phase::finishing; }
  /// Unread bytes beyond which nothing further is served.
  [[nodiscard]] std::size_t max_unread() const noexcept;
  [[nodiscard]] std::size_t num_unsent() const noexcept {
    return unsent_.size() - num_sent_ + encrypted_.size() - num_encrypted_sent_;
  }

  // The members that every request uses come first, next to each other in memory.
  UniqueFd socket_;                   // none: closed
  std::uint32_t interest_ = EPOLLIN;  // events registered with Turns::ready
  Phase phase_ = Phase::reading;
  Flush flush_ = Flush::none;
  ReadySet::Part part_ = ReadySet::Part::ordinary;
  bool is_lent_ = false;     // unsent_ is the buffer of SharedBuffers::replies
  bool is_serving_ = false;  // inside step_through: replies are being collected
  bool is_pending_ = true;   // its protocol's handshake is not complete
  ShutdownMode shutdown_mode_ = ShutdownMode::brief;
  Id id_;
  SharedBuffers& shared_;
  Owner& owner_;
  std::unique_ptr<ProtocolHandler> handler_;  // null until the first byte
  std::string rest_;    // received, not served: part of a request, or several while paused
  std::string unsent_;  // replies; the first num_sent_ bytes are sent
  std::size_t num_sent_ = 0;
  std::uint64_t shown_ = 0;  // last change that unsent_ shows
  std::size_t counted_ = 0;  // see num_buffered
  ClientFacts facts_;
  std::unique_ptr<secure::TlsChannel> tls_;  // null: not encrypted
  std::string encrypted_;  // with TLS: to be sent; the first num_encrypted_sent_ bytes are sent
  std::size_t num_encrypted_sent_ = 0;
};

}  // namespace acc::rendezvous
