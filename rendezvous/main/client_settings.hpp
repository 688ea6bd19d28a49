// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/security.hpp"

#include <cstdint>
#include <memory>
#include <string>

// Settings of the commands that connect to a daemon.
namespace acc::rendezvous {

struct HostPort {
  std::string host;  ///< without brackets
  std::uint16_t port = 0;
};

/// Throws Error(config).
HostPort read_host_port(const std::string& text);

/// Reads the file that ACC_RENDEZVOUS_TOKEN_FILE names. Throws Error(config).
Tokens token_of_environment();

/// Returns the token and the certificates of the environment variables.
std::shared_ptr<const ClientSecurity> client_security();

}  // namespace acc::rendezvous
