// SPDX-License-Identifier: Apache-2.0
#include "plan/status_endpoint.hpp"

#include "acc/base/sourced.hpp"
#include "acc/base/text.hpp"
#include "acc/launcher/setting_keys.hpp"

namespace acc::launcher::plan {

std::optional<StatusEndpoint> status_endpoint(const plugins::Settings& settings) {
  const std::string& text = settings.text("status_port"_key);
  if (text.empty()) {
    return std::nullopt;
  }
  StatusEndpoint endpoint;
  const auto colon = text.rfind(':');
  const auto port = read_number(colon == std::string::npos ? text : text.substr(colon + 1));
  if (!port || *port > UINT16_MAX || colon == 0) {
    throw bad_value({text, settings.source("status_port"_key).where},
                    "PORT or HOST:PORT, with a port of 0 to 65535");
  }
  endpoint.port = static_cast<std::uint16_t>(*port);
  if (colon != std::string::npos) {
    endpoint.host = without_brackets(text.substr(0, colon));
  }
  return endpoint;
}

}  // namespace acc::launcher::plan
