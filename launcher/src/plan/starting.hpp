#pragma once

#include "cluster/hostfile.hpp"
#include "plan/draft.hpp"

#include <string>
#include <vector>

// A job whose machines are started from here: fills `plan.start`.
namespace acc::launcher {

/// What ssh or pdsh shall start, one after the other the machines of the job.
struct StartOnHosts {
  std::vector<Host> hosts;
  std::vector<int> workers;  ///< by machine; empty: each machine finds out
  bool names_slots = false;  ///< the slots of the hosts are chosen; else only how many there are
};

/// By ssh, or what `--launcher` names: on each host the same command line as here. Machine 0 is the
/// first one, under its name there or `main_process_ip`. Throws Error(config).
void start_on_hosts(Draft& draft, const StartOnHosts& wanted, const std::string& address);

/// By srun, on that many machines of the Slurm job that this process belongs to, which then hear
/// the rest from Slurm.
void start_by_srun(Draft& draft, int num_machines, const std::vector<int>& workers);

/// What `StartOnHosts::names_slots` hands on, in ACC_HOSTS: `node0:0,1@node1:0,1`.
std::vector<Host> read_chosen_slots(const Given& given);

}  // namespace acc::launcher
