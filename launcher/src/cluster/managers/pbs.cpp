// SPDX-License-Identifier: Apache-2.0
// PBS: the job's script on the first machine, and processes that pbsdsh starts on each machine.
#include "acc/base/error.hpp"
#include "cluster/hostlist.hpp"
#include "cluster/managers/managers.hpp"

namespace acc::launcher::cluster {
namespace {

/// Returns the number at the start of the text, or 0.
std::uint64_t leading_number(std::string_view text) {
  const auto digits = text.substr(0, text.find_first_not_of("0123456789"));
  return static_cast<std::uint64_t>(parse_integer(digits).value_or(0));
}

}  // namespace

std::optional<Allocation> pbs_allocation(const JobVariables& job) {
  const auto id = job.text("PBS_JOBID");
  const auto file = job.text("PBS_NODEFILE");
  if (!id || !file) {
    return std::nullopt;
  }
  Allocation allocation;
  allocation.manager = {"PBS", "PBS job " + id->value, id->where, true, true};
  allocation.run_id = {"pbs-" + plain_id(id->value), id->where};
  allocation.number = leading_number(id->value);  // 17.server, 17[3].server
  const auto element = id->value.find('[');
  if (element != std::string::npos) {
    allocation.number += 977 * leading_number(id->value.substr(element + 1));
  }
  if (const auto found = count_hosts_in(file->value)) {
    allocation.hosts = {found->hosts, file->where};
    allocation.slots = {found->counts, file->where};
  }
  return allocation;
}

std::optional<JobEnvironment> place_of_pbs(const JobVariables& job, const HostFacts& facts) {
  const auto allocation = pbs_allocation(job);
  if (!allocation) {
    return std::nullopt;
  }
  if (!allocation->hosts) {
    throw Error(Errc::config, "PBS_NODEFILE must name a file with one host per line, got \"" +
                                  job.text("PBS_NODEFILE")->value + "\"");
  }
  JobEnvironment place = place_of_script(*allocation, facts.hostname);
  const auto node = job.number("PBS_NODENUM");
  if (!node) {
    return place;
  }
  if (node->value >= place.num_nodes->value) {
    throw Error(Errc::config,
                contradiction(node->where, std::to_string(node->value), place.num_nodes->where,
                              "has " + std::to_string(place.num_nodes->value) + " hosts"));
  }
  place.is_task = node->value > 0;  // the script runs on node 0; elsewhere pbsdsh started us
  place.node_rank = node;
  return place;
}

}  // namespace acc::launcher::cluster
