// SPDX-License-Identifier: Apache-2.0
// Kubernetes pods: of a PyTorchJob (Kubeflow), whose variables some managed cloud services set too,
// and of an Indexed Job, possibly created by a JobSet.
#include "cluster/managers/managers.hpp"

namespace acc::launcher::cluster {
namespace {

bool is_pod(const JobVariables& job) {
  return job.has("KUBERNETES_SERVICE_HOST");
}

/// True if MASTER_ADDR, WORLD_SIZE and RANK may come from a PyTorchJob. Elsewhere a user may have
/// set them in a terminal, where Accelerate ignores them.
bool counts_pods(const JobVariables& job) {
  return is_pod(job) || job.has("NPROC_PER_NODE");
}

/// Returns the job's name, which is the common prefix of its pods' names: `train` for
/// train-worker-3; "" if the name has another form.
std::string job_of_pod(const std::string& hostname) {
  for (const char* role : {"-master-", "-worker-", "-node-"}) {
    const auto found = hostname.rfind(role);
    if (found != std::string::npos) {
      return hostname.substr(0, found);
    }
  }
  return "";
}

/// Returns the place of a pod of a PyTorchJob. Its variables count pods, not workers. Inside a
/// worker they would count workers, but then LOCAL_RANK is set and find_job_environment does not
/// get here.
std::optional<JobEnvironment> place_in_pytorch_job(const JobVariables& job,
                                                   const std::string& detected_by,
                                                   const std::string& hostname) {
  JobEnvironment place;
  const std::string name = is_pod(job) ? job_of_pod(hostname) : "";
  place.manager = {is_pod(job) ? "Kubernetes" : "PyTorchJob",
                   "PyTorchJob" + (name.empty() ? "" : " " + name), detected_by, false, false};
  if (!name.empty()) {
    place.run_id = {"pytorchjob-" + name, "host name"};
  }
  return place;
}

}  // namespace

std::optional<JobEnvironment> place_of_pytorch_job(const JobVariables& job,
                                                   const HostFacts& facts) {
  std::optional<JobEnvironment> place;
  if (job.has("PET_NNODES") && job.has("PET_MASTER_ADDR")) {
    place = place_in_pytorch_job(job, "PET_NNODES, PET_MASTER_ADDR", facts.hostname);
    place->num_nodes = job.number_or_range("PET_NNODES");
    place->node_rank = job.number("PET_NODE_RANK");
    place->address = job.text("PET_MASTER_ADDR");
    place->port = job.port("PET_MASTER_PORT");
  } else if (counts_pods(job) && job.has("MASTER_ADDR") && job.has("MASTER_PORT") &&
             job.has("WORLD_SIZE") && job.has("RANK")) {
    place = place_in_pytorch_job(job, "MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK", facts.hostname);
    place->num_nodes = job.number("WORLD_SIZE");
    place->node_rank = job.number("RANK");
    place->address = job.text("MASTER_ADDR");
    place->port = job.port("MASTER_PORT");
  }
  if (place) {
    check_below(place->node_rank, place->num_nodes);
  }
  return place;
}

std::optional<JobEnvironment> place_of_indexed_job(const JobVariables& job,
                                                   const HostFacts& facts) {
  const auto index = job.number("JOB_COMPLETION_INDEX");
  if (!index || !is_pod(job)) {
    return std::nullopt;
  }
  JobEnvironment place;
  place.manager = {"Kubernetes", "Kubernetes Job", "JOB_COMPLETION_INDEX, KUBERNETES_SERVICE_HOST",
                   false, false};
  place.node_rank = index;
  const std::string ending = "-" + std::to_string(index->value);
  if (!facts.hostname.ends_with(ending)) {  // with hostNetwork it is the node's name
    return place;
  }
  const std::string name = facts.hostname.substr(0, facts.hostname.size() - ending.size());
  const auto attempt = job.number("JOBSET_RESTART_ATTEMPT");
  place.manager.job += " " + name;
  place.run_id = {"kubernetes-" + name + (attempt ? ".r" + std::to_string(attempt->value) : ""),
                  attempt ? "host name, " + attempt->where : "host name"};
  place.port = {port_of("kubernetes-" + name), "host name"};
  if (facts.domain_name.starts_with(facts.hostname + ".")) {
    place.address = {name + "-0" + facts.domain_name.substr(facts.hostname.size()),
                     "JOB_COMPLETION_INDEX, /etc/hosts"};
  }
  return place;
}

}  // namespace acc::launcher::cluster
