// SPDX-License-Identifier: Apache-2.0
// Hydra: mpiexec of MPICH, and of Intel MPI, which is based on it. Variables tell the ranks. The
// node rank and the host of mpiexec are only in the command line of hydra_pmi_proxy, the process
// that mpiexec runs on each machine, so it is read from the list of ancestor processes.
#include "acc/base/error.hpp"
#include "acc/base/sourced.hpp"
#include "acc/base/text.hpp"
#include "cluster/managers/managers.hpp"

#include <algorithm>
#include <filesystem>

namespace acc::launcher::cluster {
namespace {

using CommandLine = std::vector<std::string>;

bool is_program(const CommandLine& command, std::string_view start) {
  return !command.empty() &&
         std::filesystem::path(command.front()).filename().string().starts_with(start);
}

const CommandLine* find_program(const HostFacts& facts, std::string_view start) {
  const auto found = std::ranges::find_if(
      facts.ancestors, [&](const CommandLine& command) { return is_program(command, start); });
  return found == facts.ancestors.end() ? nullptr : &*found;
}

/// Returns the value of an option of hydra_pmi_proxy, or empty.
std::optional<Sourced<std::string>> proxy_option(const HostFacts& facts,
                                                 const std::string& option) {
  const CommandLine* proxy = find_program(facts, "hydra_pmi_proxy");
  if (proxy == nullptr) {
    return std::nullopt;
  }
  const auto found = std::ranges::find(*proxy, option);
  if (found == proxy->end() || found + 1 == proxy->end()) {
    return std::nullopt;
  }
  return Sourced<std::string>{*(found + 1), "hydra_pmi_proxy " + option};
}

/// Returns the node rank. In a Slurm job MPICH's proxy gets -1, and a variable has the rank
/// instead.
std::optional<Sourced<int>> node_rank(const JobVariables& job, const HostFacts& facts) {
  const auto option = proxy_option(facts, "--proxy-id");
  const auto number = option ? read_number(option->value) : std::nullopt;
  return number ? std::optional(Sourced<int>{*number, option->where})
                : job.number("HYDRA_BSTRAP_PROXY_ID");
}

bool is_started_by_mpiexec(const HostFacts& facts) {
  return find_program(facts, "mpiexec") != nullptr || find_program(facts, "mpirun") != nullptr;
}

}  // namespace

std::optional<JobEnvironment> place_of_hydra(const JobVariables& job, const HostFacts& facts) {
  if (!job.has("PMI_RANK") || !job.has("PMI_SIZE") || !job.has("MPI_LOCALNRANKS")) {
    return std::nullopt;
  }
  JobEnvironment place;
  const auto intel = job.text("I_MPI_HYDRA_UUID");
  const auto control = proxy_option(facts, "--control-port");
  const auto id = first_of(intel, control);
  place.manager = {intel ? "Intel MPI" : "MPICH", "", "PMI_RANK", true, true};
  place.manager.job = place.manager.name + " job" + (id ? " " + id->value : "");
  read_task(job, {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}, place);
  if (!place.node_rank) {
    place.node_rank = node_rank(job, facts);
  }
  if (id) {
    place.run_id = {(intel ? "intelmpi-" : "mpich-") + plain_id(id->value), id->where};
    place.port = {port_of(std::string_view(place.run_id.value)), id->where};
  }
  if (control) {
    const std::string host = control->value.substr(0, control->value.rfind(':'));
    expect_rank_0_at({host, control->where}, is_started_by_mpiexec(facts), place);
  }
  return place;
}

}  // namespace acc::launcher::cluster
