// SPDX-License-Identifier: Apache-2.0
// Flux. It sets no variable with the hosts, so the address of rank 0 is known on one machine only.
#include "cluster/managers/managers.hpp"

namespace acc::launcher::cluster {

std::optional<JobEnvironment> place_of_flux(const JobVariables& job, const HostFacts&) {
  const auto id = job.text("FLUX_JOB_ID");
  if (!id || !job.has("FLUX_TASK_RANK")) {
    return std::nullopt;
  }
  JobEnvironment place;
  place.manager = {"Flux", "Flux job " + id->value, "FLUX_JOB_ID, FLUX_TASK_RANK", true, true};
  read_task(job, {"FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", ""}, place);
  place.num_nodes = job.number("FLUX_JOB_NNODES");
  if (place.num_nodes && place.num_nodes->value == 1) {
    place.node_rank = {0, place.num_nodes->where};
    place.address = {"127.0.0.1", place.num_nodes->where};
    place.local_size = place.num_tasks;
  }
  place.run_id = {"flux-" + plain_id(id->value), id->where};
  place.port = {port_of(std::string_view(place.run_id.value)), id->where};
  return place;
}

}  // namespace acc::launcher::cluster
