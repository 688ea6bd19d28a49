#pragma once

#include "acc/launcher/launch_plan.hpp"
#include "plan/given.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// Where and how long machines meet, as torchrun's flags say it. All throw Error(config).
namespace acc::launcher {

/// `key=value` joined by commas: sets the times of `plan`, or else torchrun's defaults for its
/// backend. Returns notices about keys that have no effect.
std::vector<std::string> read_rendezvous_conf(const Given& given, RendezvousPlan& plan);

struct Endpoint {
  std::string host;  ///< an IPv6 address without its brackets
  std::optional<std::uint16_t> port;
};

/// `HOST[:PORT]`; an IPv6 address stands in brackets, which it may lack before a port.
Endpoint read_endpoint(const Given& given);

struct MachineRange {
  int least = 1;
  int most = 1;
};

/// `N`, or `MIN:MAX`.
MachineRange read_machine_range(const Given& given);

/// A random UUID, for a run that was given no id.
std::string random_run_id();

}  // namespace acc::launcher
