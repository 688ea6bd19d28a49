#pragma once

#include "acc/plugins/environment.hpp"
#include "acc/plugins/settings.hpp"
#include "acc/rendezvous/server.hpp"
#include "command_line.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace acc::rendezvous {

/// The settings from all sources: a flag beats a variable, that the file, that the default. Throws
/// Error(config) or Error(not_found) with everything that is wrong, in the command line too.
plugins::Settings read_settings(const CommandLine& line, const plugins::Environment& environment);

/// The variables that begin as ours do and are no setting. A service of that name in Kubernetes
/// makes some, so they are no fault.
std::vector<std::string> unknown_variables(const plugins::Environment& environment);

/// What the service needs, by type.
struct Options {
  std::vector<std::string> hosts;
  std::uint16_t port = 0;
  std::filesystem::path port_file;       ///< empty: none
  std::optional<std::string> log_level;  ///< nothing: as for every program of acclaunch
  bool chose_max_connections = false;    ///< else it may be lowered to what fits
  ServerOptions server;
};

Options to_options(const plugins::Settings& settings);

}  // namespace acc::rendezvous
