// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/plugins/settings.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace acc::launcher::plan {

/// Where a job can be watched by HTTP (--status_port).
struct StatusEndpoint {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;  ///< 0: a free one
};

/// Reads PORT or HOST:PORT; empty if it is not given. Throws Error(config).
std::optional<StatusEndpoint> status_endpoint(const plugins::Settings& settings);

}  // namespace acc::launcher::plan
