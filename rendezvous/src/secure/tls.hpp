// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/security.hpp"

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

struct ssl_ctx_st;
struct ssl_st;

namespace acc::rendezvous {

/// Messages of a client for two failures, which depend on the kind of server.
struct TlsMessages {
  std::string_view no_tls{};          ///< the server does not use TLS
  std::string_view no_certificate{};  ///< the server requires a certificate and got none
};

/// TLS settings and identity of one side; shared by its connections.
struct TlsContext {
  std::shared_ptr<ssl_ctx_st> context;
  TlsMessages messages;
};

namespace secure {

/// First byte of a TLS connection: the type of a handshake record.
inline constexpr char kTlsHandshake = 0x16;
/// Alert handshake_failure (RFC 8446, section 6): answer of a server without TLS to a TLS client.
inline constexpr std::string_view kTlsRefusal{"\x15\x03\x03\x00\x02\x02\x28", 7};

/// Alert access_denied: answer to a TLS client whose address is shut out (max_failed_proofs).
inline constexpr std::string_view kTlsShutOut{"\x15\x03\x03\x00\x02\x02\x31", 7};

/// Largest first message of a TLS client that a server takes. OpenSSL allocates the size that the
/// message says, up to 128 KiB, before it has come.
inline constexpr std::size_t kMaxClientHello = std::size_t{16} * 1024 - 4;
/// True if `bytes`, the first ones of a client, contain its first TLS record. Throws
/// Error(protocol) if they do not begin a client's first message, or one that is larger than
/// kMaxClientHello.
bool has_client_hello(std::string_view bytes);

/// TLS over bytes: encrypts and decrypts one connection, without a socket. The server's sockets
/// are served by its own epoll set rather than by Asio streams, so this class has the place of
/// asio::ssl::stream on both sides.
class TlsChannel {
 public:
  static std::unique_ptr<TlsChannel> server(const TlsContext& context);
  /// `host` is the name or address that the server's certificate must have, if it is checked.
  static std::unique_ptr<TlsChannel> client(const TlsContext& context, const std::string& host);
  ~TlsChannel();
  TlsChannel(const TlsChannel&) = delete;
  TlsChannel& operator=(const TlsChannel&) = delete;

  /// Starts the handshake of a client: appends its first bytes to `out`.
  void start(std::string& out);
  /// Takes bytes that the peer sent. Appends decrypted bytes to `plain` and bytes for the peer to
  /// `out`. Throws Error(disagreement) if the peer or its certificate is refused, or this side was,
  /// and Error(connection) if the server shuts this address out; `out` then has the alert for the
  /// peer.
  void receive(std::string_view bytes, std::string& plain, std::string& out);
  /// Encrypts bytes; requires is_established.
  void send(std::string_view plain, std::string& out);
  /// Appends the message that ends the stream, once.
  void finish(std::string& out);
  /// True if the handshake is complete.
  [[nodiscard]] bool is_established() const noexcept;
  /// True if the peer has ended the stream.
  [[nodiscard]] bool is_finished() const noexcept { return is_finished_; }
  /// Returns 32 bytes that only both ends of this connection know (RFC 9266, tls-exporter).
  [[nodiscard]] std::string binding() const;

 private:
  explicit TlsChannel(const TlsContext& context);
  void drain(std::string& out);
  [[noreturn]] void fail(std::string& out);

  ssl_st* ssl_;
  TlsMessages messages_;
  bool is_finished_ = false;
};

}  // namespace secure
}  // namespace acc::rendezvous
