// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/security.hpp"
#include "secure/proof.hpp"
#include "secure/tls.hpp"

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace acc::rendezvous::secure {

/// A client's end of a secure connection, without the socket: TLS, then the proof, then the bytes
/// of the protocol in both directions.
class SecureLink {
 public:
  /// `host` is the server's name or address as the user gave it. Proves the current one of
  /// `tokens`, or of the tokens of `security`.
  SecureLink(std::shared_ptr<const ClientSecurity> security, const std::string& host,
             Admission wanted, std::optional<Tokens> tokens = std::nullopt);

  /// Appends the first bytes for the server to `out`.
  void start(std::string& out) { tls_->start(out); }
  /// Takes bytes of the server. Appends bytes of the protocol to `plain`, bytes for the server to
  /// `out`. Throws TokenRefused if the server refuses the token, Error(disagreement) if it is
  /// refused or refuses for another reason, and Error(connection) if it accepts no client of this
  /// address at present; `out` contains the answer to the server.
  void receive(std::string_view bytes, std::string& plain, std::string& out);
  /// Sends bytes of the protocol; before the server has admitted this client, keeps them.
  void send(std::string_view plain, std::string& out);
  /// Ends the stream, behind everything that was sent.
  void finish(std::string& out) { tls_->finish(out); }
  [[nodiscard]] bool is_admitted() const noexcept { return proof_ && proof_->is_over(); }
  /// True if the server has ended the stream.
  [[nodiscard]] bool is_finished() const noexcept { return tls_->is_finished(); }

 private:
  std::shared_ptr<const ClientSecurity> security_;
  Admission wanted_;
  Tokens tokens_;
  std::unique_ptr<TlsChannel> tls_;
  std::optional<ClientProof> proof_;  // none: TLS is not established
  std::string received_;              // decrypted, before the proof is over
  std::string waiting_;               // to be sent when the proof is over
};

}  // namespace acc::rendezvous::secure
