// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/sourced.hpp"
#include "acc/base/text.hpp"
#include "acc/launcher/launch_plan.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// Parsers for rendezvous options in torchrun's notation. All throw Error(config).
namespace acc::launcher::plan {

/// Parses --rdzv-conf, `key=value` joined by commas, and sets the times of `plan`. Times without a
/// key get torchrun's defaults for the plan's backend. Returns notices about keys that have no
/// effect.
std::vector<std::string> read_rendezvous_conf(const Sourced<std::string>& given,
                                              RendezvousPlan& plan);

/// Returns the notice that a job on one machine does not connect to the address at `where`, so that
/// a daemon there does not show it. elastic: flags with which it would.
std::string not_connected(const std::string& where, const std::string& elastic);

/// Host and optional port of --rdzv-endpoint.
struct Endpoint {
  std::string host;  ///< an IPv6 address without its brackets
  std::optional<std::uint16_t> port;
};

/// Parses `HOST[:PORT]`. An IPv6 address is in brackets, which may be missing if a port follows.
Endpoint read_endpoint(const Sourced<std::string>& given);

/// Parses one or several of them, joined by commas.
std::vector<Endpoint> read_endpoints(const Sourced<std::string>& given);
/// Returns them in that form; an endpoint without a port gets `port`.
std::string endpoints_text(const std::vector<Endpoint>& endpoints, std::uint16_t port);

/// Minimum and maximum number of machines.
struct MachineRange {
  int least = 1;
  int most = 1;
};

/// Parses `N`, or `MIN:MAX`.
MachineRange read_machine_range(const Sourced<std::string>& given);

/// Returns a random UUID (version 4), for a run without a given id.
std::string random_run_id();

}  // namespace acc::launcher::plan
