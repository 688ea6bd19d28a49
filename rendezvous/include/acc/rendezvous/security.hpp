// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/tls_files.hpp"

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// Tokens, proofs and TLS between the clients and the server of a rendezvous (docs/protocol.md,
/// "Secure connections").
namespace acc::rendezvous {

/// Part that a client proves it may play.
enum class Role : std::uint8_t {
  agent = 1,          ///< joins the rounds of one job
  store = 2,          ///< uses the TCPStore for one job
  administrator = 3,  ///< uses the administration protocol
};

/// The secrets of a rendezvous, the current one first. A client proves the first one; a server
/// accepts each of them, so that a token can be rotated while clients still have the old one.
class Tokens {
 public:
  /// Reads a token file: one token per line, each of at least 32 printable characters without
  /// blanks. Throws Error(config) or Error(not_found) with file and line.
  static Tokens read(const std::filesystem::path& file);
  /// `tokens` is not empty.
  explicit Tokens(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {}

  /// Returns a token that is worth the first one for one job only, so that its holder can neither
  /// join other jobs nor administrate.
  [[nodiscard]] std::string job_token(std::string_view run_id) const;
  /// True if the first token is one that `job_token` returned.
  [[nodiscard]] bool is_for_one_job() const noexcept;
  /// Returns the keys for proofs of this role in this job, the current one first.
  [[nodiscard]] std::vector<std::string> keys(Role role, std::string_view run_id) const;
  /// True if `text` is one of the tokens. Takes the same time for every text of the same length.
  [[nodiscard]] bool contains(std::string_view text) const;
  [[nodiscard]] const std::string& current() const noexcept { return tokens_.front(); }

 private:
  std::vector<std::string> tokens_;
};

/// Returns a new random token of 256 bits.
std::string make_token();

class TlsContext;

/// Conditions under which a server admits clients, and its TLS identity. Without tokens it encrypts
/// connections but admits everyone. Immutable.
struct ServerSecurity {
  std::optional<Tokens> tokens;
  /// The only job whose proofs are accepted; none: every job.
  std::optional<std::string> only_job;
  std::shared_ptr<TlsContext> tls;

  /// Without a certificate it makes one for this process: the proof, which is bound to the
  /// encrypted channel, then shows both sides that nobody is in between. With `files.ca`, clients
  /// need a certificate. Throws Error(config) or Error(not_found) with the file.
  static std::shared_ptr<const ServerSecurity> make(
      std::optional<Tokens> tokens, const TlsFiles& files,
      std::optional<std::string> only_job = std::nullopt);
};

/// Token and TLS identity with which a client connects. Immutable.
struct ClientSecurity {
  Tokens tokens;
  std::shared_ptr<TlsContext> tls;

  /// With `files.ca` the server's certificate is checked, too. Throws Error(config) or
  /// Error(not_found) with the file.
  static std::shared_ptr<const ClientSecurity> make(Tokens tokens, const TlsFiles& files);
};

/// Returns the TLS identity of a client of etcd. The certificate of etcd must lead to `files.ca`,
/// or to an authority of the system if there is none. Throws Error(config) or Error(not_found) with
/// the file.
std::shared_ptr<TlsContext> make_etcd_tls(const TlsFiles& files);

/// Creates in `folder` a certificate authority (ca.pem, ca.key), a certificate of a server with
/// these names and addresses (server.pem, server.key), one of its clients (client.pem, client.key)
/// and a token (token). Keys and token have mode 0600. Throws Error(config) if one of the files
/// exists or cannot be written.
void make_tls_folder(const std::filesystem::path& folder, const std::vector<std::string>& hosts,
                     std::chrono::seconds valid_for);

}  // namespace acc::rendezvous
