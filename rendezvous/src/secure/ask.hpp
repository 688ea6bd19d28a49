// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/security.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace acc::rendezvous::secure {

struct Server {
  std::string host;  ///< name, address or unix:/path
  std::uint16_t port = 0;
};

/// Sends a request and returns the bytes of the answer, as soon as `is_complete` accepts them, or
/// when the server ends the stream. With `security`, proves the tokens that this machine has now,
/// until the server accepts one. Throws Error, also what `is_complete` throws; Error(disagreement)
/// if the server accepts no token.
std::string ask(const Server& server, const std::shared_ptr<const ClientSecurity>& security,
                Role role, const std::string& request, std::chrono::steady_clock::time_point until,
                const std::function<bool(const std::string& answer)>& is_complete);

}  // namespace acc::rendezvous::secure
