// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace acc::launcher::monitor {

/// Returns the JSON object in a line; a discarded value if the line is none. NaN, Infinity and
/// -Infinity, which Python's json module writes although they are not JSON, become null.
nlohmann::json json_line(const std::string& line);

}  // namespace acc::launcher::monitor
