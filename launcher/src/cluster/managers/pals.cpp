// SPDX-License-Identifier: Apache-2.0
#include "cluster/managers/managers.hpp"

namespace acc::launcher::cluster {

std::optional<JobEnvironment> place_of_pals(const JobVariables& job, const HostFacts& facts) {
  // Slurm's plugin for Cray MPI sets these variables too; Slurm's own variables have more facts.
  if (!job.has("PALS_APID") || !job.has("PALS_RANKID") || is_slurm_task(job, facts)) {
    return std::nullopt;
  }
  JobEnvironment place;
  const auto id = job.text("PALS_APID");
  place.manager = {"Cray PALS", "Cray PALS job " + id->value, "PALS_APID", true, true};
  read_task(job, {"PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PMI_LOCAL_SIZE"}, place);
  if (const auto node = job.number("PALS_NODEID")) {
    place.node_rank = node;
  }
  place.run_id = {"pals-" + plain_id(id->value), id->where};
  place.port = {port_of(std::string_view(place.run_id.value)), id->where};
  return place;
}

}  // namespace acc::launcher::cluster
