// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/log.hpp"
#include "acc/rendezvous/server.hpp"
#include "acc/settings/environment.hpp"
#include "acc/settings/flags.hpp"
#include "acc/settings/settings.hpp"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace acc::rendezvous {

/// Reads the settings from all sources. Precedence: flag, environment variable, file, default.
/// Throws Error(config) or Error(not_found) with all problems at once, including those of the
/// command line.
settings::Settings read_settings(const settings::ParsedFlags& flags,
                                 const settings::Environment& environment);

/// Returns environment variables that begin with ACC_RENDEZVOUS_ but are not a setting. They are
/// not an error, because Kubernetes sets some for a service of that name.
std::vector<std::string> unknown_variables(const settings::Environment& environment);

/// The settings as typed values, for run_service.
struct Options {
  std::vector<std::string> hosts;
  std::uint16_t port = 0;
  std::filesystem::path port_file;   ///< empty: none
  std::filesystem::path token_file;  ///< empty: none
  TlsFiles tls;
  bool is_insecure = false;            ///< other machines may reach it without a token
  bool chose_max_connections = false;  ///< the user gave max_connections; else it may be lowered
  LogSettings log;
  ServerOptions server;
};

/// Throws Error(config) for a wrong value of ACC_LOG_FORMAT, ACC_LOG_LEVEL or ACC_LOG, which apply
/// if the settings do not name format and level, and if there is no default for `state_dir`.
///
/// Also throws if the token or the certificates cannot be used.
Options to_options(const settings::Settings& settings, const settings::Environment& environment);

}  // namespace acc::rendezvous
