// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/error.hpp"
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
  reader = 4,         ///< reads by HTTP
};

/// The server refuses the proof of a token.
class TokenRefused : public Error {
 public:
  using Error::Error;
};

/// The secrets of a rendezvous, the current one first. A client proves the first one; a server
/// accepts each of them, so that a token can be rotated while clients still have the old one.
class Tokens {
 public:
  /// Reads a token file: one token per line, each of at least 32 printable characters without
  /// blanks. Throws Error(config) or Error(not_found) with file and line.
  static Tokens read(const std::filesystem::path& file);
  /// As `read`; `now` then reads the file again.
  static Tokens follow(const std::filesystem::path& file);
  /// `tokens` is not empty.
  explicit Tokens(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {}

  /// Returns the tokens that the file has now, which may have been rotated while a job runs: call
  /// it for each connection. If the file cannot be read, those that were read last, with a warning.
  [[nodiscard]] Tokens now() const;
  /// Returns each of the tokens alone, in their order.
  [[nodiscard]] std::vector<Tokens> each() const;
  /// Keeps the tokens of `before` that these do not contain as former ones: `was_right`.
  void remember(const Tokens& before);

  /// Returns a token that is worth the first one for one job only, so that its holder can neither
  /// join other jobs nor administrate.
  [[nodiscard]] std::string job_token(std::string_view run_id) const;
  /// Returns a token whose holder can read by HTTP, and nothing else. This one and `job_token`
  /// throw Error(config) if the first token is not worth it.
  [[nodiscard]] std::string reader_token() const;
  /// True if the first token is one that `job_token` returned.
  [[nodiscard]] bool is_for_one_job() const noexcept;
  /// True if the first token is one that `reader_token` returned.
  [[nodiscard]] bool is_for_readers() const noexcept;
  /// Returns the keys for proofs of this role in this job, the current one first.
  [[nodiscard]] std::vector<std::string> keys(Role role, std::string_view run_id) const;
  /// The same for the former tokens.
  [[nodiscard]] std::vector<std::string> former_keys(Role role, std::string_view run_id) const;
  /// True if a client that sends this text may read: it is one of the tokens, or the reader's token
  /// of one. Takes the same time for every text of the same length.
  [[nodiscard]] bool contains(std::string_view text) const;
  /// The same for the former tokens.
  [[nodiscard]] bool was_right(std::string_view text) const;
  [[nodiscard]] const std::string& current() const noexcept { return tokens_.front(); }
  /// Throws Error(config): the first token is for one job or for readers only.
  [[noreturn]] void refuse_use() const;

 private:
  struct Followed;

  std::vector<std::string> tokens_;
  std::vector<std::string> former_;     // a client that has not read its file again proves these
  std::shared_ptr<Followed> followed_;  // null: not of a file that is read again
};

/// Returns the tokens of the file that ACC_RENDEZVOUS_TOKEN_FILE names, which is read again
/// (Tokens::follow); nothing if the variable is not set.
std::optional<Tokens> tokens_of_environment();

/// Returns the files with the TLS identity of clients: ACC_RENDEZVOUS_CLIENT_CERT,
/// ACC_RENDEZVOUS_CLIENT_KEY, ACC_RENDEZVOUS_CA_FILE.
TlsFiles client_files_of_environment();

/// Returns a new random token of 256 bits.
std::string make_token();

struct TlsContext;

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
