// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace acc::rendezvous {

struct ClientSecurity;

/// A client of the HTTP API of a server (docs/api.md), with or without a token.
class HttpReader {
 public:
  struct Address {
    std::string host;        ///< name, address or unix:/path
    std::uint16_t port = 0;  ///< not of a Unix socket
    bool is_secure = false;  ///< TLS and the proof of a token
  };

  /// Throws Error if the address is secure and this user has no token (ACC_RENDEZVOUS_TOKEN_FILE).
  explicit HttpReader(Address address);
  /// The address, for messages: "node0:29500".
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  using Time = std::chrono::steady_clock::time_point;

  /// Asks for a path and returns the whole answer, its head included, within ten seconds and before
  /// `until`. Every error names the server: Error(connection), Error(timeout), Error(protocol) if
  /// the answer is cut off, or Error(disagreement) if the server wants another token.
  [[nodiscard]] std::string get(const std::string& path, Time until = Time::max()) const;

 private:
  Address address_;
  std::string name_;
  std::shared_ptr<const ClientSecurity> security_;  // null: no token is needed
};

}  // namespace acc::rendezvous
