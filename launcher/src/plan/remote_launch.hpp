// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cluster/hostfile.hpp"
#include "plan/draft.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// Planning of a job whose machines are started from here. The results are for `LaunchPlan::start`.
namespace acc::launcher::plan {

/// Hosts to start a job on.
struct RemoteHosts {
  std::vector<cluster::Host> hosts;  ///< by machine rank
  std::vector<int> workers;          ///< number of workers by machine; empty: each machine decides
  bool names_slots = false;          ///< pass on which slots were selected, not only their number
};

/// Plans a start by ssh, or by the client that `--launcher` names: the same command line as here on
/// each host. The first host is machine 0, which the others reach at `address` and `port`; without
/// a port, one that follows from the random id of the run. Adds notices. Throws Error(config).
RemoteLaunchPlan start_on_hosts(Draft& draft, const RemoteHosts& wanted, const std::string& address,
                                std::optional<std::uint16_t> port);

/// Plans a start by srun on `num_machines` machines of the Slurm job that this process belongs to.
/// The launchers get ranks and addresses from Slurm's variables.
RemoteLaunchPlan start_by_srun(const Draft& draft, int num_machines,
                               const std::vector<int>& workers);

/// Parses ACC_HOSTS, which carries the selected slots: `node0:0,1@node1:0,1`.
std::vector<cluster::Host> read_chosen_slots(const Sourced<std::string>& given);

}  // namespace acc::launcher::plan
