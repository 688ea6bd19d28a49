// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/security.hpp"

#include <optional>
#include <string>
#include <string_view>

// The proof of a token, without sockets (docs/protocol.md). Each side proves to the other that it
// knows the key of the role and the job, for this connection only: the digests cover random numbers
// of both sides and the binding of the encrypted channel.
namespace acc::rendezvous::secure {

/// First bytes of a client, the last one is the version.
inline constexpr std::string_view kProofHello{
    "\xa5"
    "acp\x01",
    5};
/// Reply of a server that refuses.
inline constexpr char kProofRefusal = 1;
/// Longest run id of a proof, in bytes.
inline constexpr std::size_t kMaxRunId = 1024;

/// What a client has proved.
struct Admission {
  Role role = Role::agent;
  std::string run_id;  ///< empty for an administrator and a reader

  bool operator==(const Admission&) const = default;
};

/// The client's side.
class ClientProof {
 public:
  /// `binding` identifies the channel; both sides have the same.
  ClientProof(const Tokens& tokens, Admission wanted, std::string binding);

  /// Returns the first bytes to send.
  [[nodiscard]] std::string hello() const;
  /// Takes the next message of the server from `bytes` and appends the reply to `out`. Returns
  /// false if it is incomplete or the proof is over. Throws TokenRefused if the server refuses, and
  /// Error(disagreement) if it has no token or cannot prove that it has this one.
  bool step(std::string_view& bytes, std::string& out);
  [[nodiscard]] bool is_over() const noexcept { return state_ == State::over; }

 private:
  enum class State { hello, proof, over };

  std::string key_;
  Admission wanted_;
  std::string binding_;
  std::string nonce_;
  std::string server_nonce_;
  State state_ = State::hello;
};

/// The server's side.
class ServerProof {
 public:
  /// `security` has tokens and must outlive the proof.
  ServerProof(const ServerSecurity& security, std::string binding);

  /// Takes the next message of the client from `bytes` and appends the reply to `out`. Returns
  /// false if it is incomplete or the proof is over. Throws Error(protocol) for bytes that are no
  /// proof, and Error(disagreement) for a wrong proof, after the refusal is in `out`.
  bool step(std::string_view& bytes, std::string& out);
  /// What the client has proved; nothing before.
  [[nodiscard]] const std::optional<Admission>& admission() const noexcept { return admission_; }
  /// True if the proof is that of a former token: the client is no stranger.
  [[nodiscard]] bool was_right() const noexcept { return was_right_; }

 private:
  bool take_hello(std::string_view& bytes, std::string& out);
  bool take_proof(std::string_view& bytes, std::string& out);

  const ServerSecurity& security_;
  std::string binding_;
  Admission asked_;
  std::string client_nonce_;
  std::string nonce_;  // empty: no hello yet
  std::optional<Admission> admission_;
  bool was_right_ = false;
};

}  // namespace acc::rendezvous::secure
