// SPDX-License-Identifier: Apache-2.0
// mpirun of Open MPI 4 and 5, and other launchers that use PMIx, the interface between launchers
// and MPI processes. The host of mpirun, where rank 0 normally runs, is in mpirun's URI (version 4)
// or in the PMIx namespace (version 5).
#include "cluster/managers/managers.hpp"

namespace acc::launcher::cluster {
namespace {

/// Returns the first address in mpirun's URI,
/// `JOB;tcp://10.77.0.1,10.1.1.1:PORT;tcp6://[fd00::1]:PORT`.
std::optional<Sourced<std::string>> address_in_uri(const std::optional<Sourced<std::string>>& uri) {
  constexpr std::string_view kScheme = "://";
  const auto scheme = uri ? uri->value.find(kScheme) : std::string::npos;
  if (scheme == std::string::npos) {
    return std::nullopt;
  }
  const std::string rest = uri->value.substr(scheme + kScheme.size());
  const bool bracketed = rest.starts_with('[');
  std::string address = bracketed ? rest.substr(1, rest.find_first_of("],;") - 1)
                                  : rest.substr(0, rest.find_first_of(",:;"));
  return address.empty() ? std::nullopt
                         : std::optional(Sourced<std::string>{std::move(address), uri->where});
}

/// Returns HOST of a namespace `prterun-HOST-PID@1`. HOST may contain hyphens.
std::optional<Sourced<std::string>> host_in_namespace(
    const std::optional<Sourced<std::string>>& name) {
  const auto start =
      name && name->value.starts_with("prte") ? name->value.find('-') : std::string::npos;
  const auto end = start == std::string::npos ? start : name->value.rfind('-');
  if (end == std::string::npos || end <= start + 1) {
    return std::nullopt;
  }
  return Sourced<std::string>{name->value.substr(start + 1, end - start - 1), name->where};
}

/// True if this process runs on mpirun's machine: if the daemon that started it is the first one,
/// which is mpirun itself. Also true if no variable tells.
bool is_beside_mpirun(const JobVariables& job) {
  for (const char* name : {"PMIX_SERVER_URI2", "PMIX_SERVER_URI3", "PMIX_SERVER_URI4",
                           "PMIX_SERVER_URI41", "PMIX_SERVER_URI21"}) {
    if (const auto server = job.text(name)) {
      return server->value.substr(0, server->value.find(';')).ends_with(".0");
    }
  }
  const auto own = job.text("OMPI_MCA_orte_local_daemon_uri");
  const auto first = job.text("OMPI_MCA_orte_hnp_uri");
  return !own || !first || own->value == first->value;
}

JobEnvironment place_of_mpirun(const JobVariables& job, const TaskNames& names,
                               const std::string& name, const std::string& prefix) {
  JobEnvironment place;
  const auto id = first_of(job.text("PMIX_NAMESPACE"), job.text("OMPI_MCA_ess_base_jobid"));
  place.manager = {name, name + " job" + (id ? " " + id->value : ""), names.rank, true, true};
  read_task(job, names, place);
  if (id) {
    place.run_id = {prefix + plain_id(id->value), id->where};
    place.port = {port_of(std::string_view(place.run_id.value)), id->where};
  }
  if (!place.num_nodes) {
    place.num_nodes = job.number("OMPI_MCA_orte_num_nodes");
  }
  const auto host = first_of(address_in_uri(job.text("OMPI_MCA_orte_hnp_uri")),
                             host_in_namespace(job.text("PMIX_NAMESPACE")));
  if (host) {
    expect_rank_0_at(*host, is_beside_mpirun(job), place);
  }
  return place;
}

}  // namespace

std::optional<JobEnvironment> place_of_open_mpi(const JobVariables& job, const HostFacts&) {
  if (!job.has("OMPI_COMM_WORLD_RANK") || !job.has("OMPI_COMM_WORLD_SIZE") ||
      job.has("JSM_NAMESPACE_RANK")) {  // jsrun sets the same variables
    return std::nullopt;
  }
  return place_of_mpirun(job,
                         {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                          "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
                         "Open MPI", "openmpi-");
}

std::optional<JobEnvironment> place_of_pmix(const JobVariables& job, const HostFacts&) {
  const auto name = job.text("PMIX_NAMESPACE");
  if (!job.has("PMIX_RANK") || !name || name->value.starts_with("slurm.pmix")) {  // srun --mpi=pmix
    return std::nullopt;
  }
  return place_of_mpirun(job, {"PMIX_RANK", "", "", ""}, "PMIx", "pmix-");
}

}  // namespace acc::launcher::cluster
