// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/security.hpp"
#include "secure/secure_link.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace acc::rendezvous {

/// Chooses the address of the rendezvous at which an agent tries next, and the token that it proves
/// there. Uses no socket.
class ServerChoice {
 public:
  using Milliseconds = std::chrono::milliseconds;
  struct Address {
    std::string host;
    std::uint16_t port = 0;
  };

  /// `security`: null if connections are not encrypted.
  explicit ServerChoice(std::shared_ptr<const ClientSecurity> security)
      : security_(std::move(security)) {}

  void set_first(Address address) { servers_.front() = std::move(address); }
  void add(Address address) { servers_.push_back(std::move(address)); }

  [[nodiscard]] const Address& current() const { return servers_[current_]; }
  [[nodiscard]] std::string where() const {
    return fmt::format("{}:{}", current().host, current().port);
  }
  /// The next attempt to connect is made at the next address. True if it was not tried since the
  /// last pause: no pause is needed.
  bool try_next() {
    current_ = (current_ + 1) % servers_.size();
    num_tried_ = (num_tried_ + 1) % servers_.size();
    return num_tried_ != 0;
  }
  /// The next address counts as the first one since a pause.
  void begin_again() { num_tried_ = 0; }
  /// Returns the time limit of one attempt to connect and enter.
  [[nodiscard]] Milliseconds attempt_timeout() const;

  /// Chooses the token for the next connection. False if the server has just refused every token of
  /// this machine.
  bool choose_token();
  /// The server refuses the token of the current connection. True if it may accept another one.
  bool refuse_token();
  /// Returns the encryption of a connection to the current server; null: none.
  [[nodiscard]] std::unique_ptr<secure::SecureLink> encryption(const std::string& run_id) const;

 private:
  [[nodiscard]] std::optional<Tokens> token_to_prove() const;

  std::shared_ptr<const ClientSecurity> security_;
  std::vector<Address> servers_{{}};
  std::size_t current_ = 0;
  std::size_t num_tried_ = 0;    ///< since the last pause
  std::optional<Tokens> token_;  ///< proved on the current connection
  /// Times at which a server, by its index, has refused a token.
  std::map<std::pair<std::size_t, std::string>, std::chrono::steady_clock::time_point> refused_;
};

}  // namespace acc::rendezvous
