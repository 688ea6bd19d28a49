// SPDX-License-Identifier: Apache-2.0
#include "client_settings.hpp"

#include "acc/base/error.hpp"
#include "acc/base/text.hpp"

#include <fmt/format.h>

#include <limits>

namespace acc::rendezvous {
HostPort read_host_port(const std::string& text) {
  const auto colon = text.rfind(':');
  const auto port = parse_integer(colon == std::string::npos ? "" : text.substr(colon + 1));
  if (!port || *port < 1 || *port > std::numeric_limits<std::uint16_t>::max() || colon == 0) {
    throw Error(Errc::config, fmt::format("\"{}\": expected HOST:PORT", text));
  }
  return {without_brackets(text.substr(0, colon)), static_cast<std::uint16_t>(*port)};
}

Tokens token_of_environment() {
  const auto tokens = tokens_of_environment();
  if (!tokens) {
    throw Error(Errc::config, "ACC_RENDEZVOUS_TOKEN_FILE must name the file with the token");
  }
  return *tokens;
}

std::shared_ptr<const ClientSecurity> client_security() {
  return ClientSecurity::make(token_of_environment(), client_files_of_environment());
}

}  // namespace acc::rendezvous
