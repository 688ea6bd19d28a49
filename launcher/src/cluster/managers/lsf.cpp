// SPDX-License-Identifier: Apache-2.0
// LSF: jobs of bsub, and tasks of jsrun in such a job.
#include "acc/base/error.hpp"
#include "acc/base/sourced.hpp"
#include "acc/base/text.hpp"
#include "cluster/hostlist.hpp"
#include "cluster/managers/managers.hpp"

#include <sstream>

namespace acc::launcher::cluster {
namespace {

/// Parses LSB_MCPU_HOSTS, `h1 4 h2 4`.
HostCounts read_host_numbers(const Sourced<std::string>& list) {
  HostCounts found;
  std::istringstream words(list.value);
  for (std::string host; words >> host;) {
    std::string text;
    words >> text;
    const auto count = read_number(text);
    if (!count) {
      throw bad_value({list.value, list.where}, "hosts and numbers of slots, as in h1 4 h2 4");
    }
    found.add(host, *count);
  }
  return found;
}

/// Hosts with their slots, and the variable that lists them.
struct Found {
  HostCounts counts;
  std::string where;
};

/// Returns the job's hosts from the first variable that has them. LSF leaves out LSB_HOSTS if the
/// list is long.
std::optional<Found> find_hosts(const JobVariables& job) {
  if (const auto list = job.text("LSB_MCPU_HOSTS")) {
    return Found{read_host_numbers(*list), list->where};
  }
  if (const auto file = job.text("LSB_DJOB_RANKFILE")) {
    if (auto counts = count_hosts_in(file->value)) {
      return Found{*std::move(counts), file->where};
    }
  }
  if (const auto list = job.text("LSB_HOSTS")) {
    return Found{count_hosts(list->value), list->where};
  }
  return std::nullopt;
}

/// Removes the launch node. On systems with jsrun the job's script runs on a separate machine,
/// which LSF lists first with a single slot; jsrun starts no tasks there.
void drop_launch_host(Allocation& allocation) {
  if (!allocation.hosts) {
    return;
  }
  std::vector<int>& slots = allocation.slots->value;
  if (slots.size() > 1 && slots[0] == 1 && slots[1] > 1) {
    slots.erase(slots.begin());
    allocation.hosts->value.erase(allocation.hosts->value.begin());
  }
}

}  // namespace

std::optional<Allocation> lsf_allocation(const JobVariables& job) {
  const auto id = job.big_number("LSB_JOBID");
  if (!id) {
    return std::nullopt;
  }
  const auto element = job.big_number("LSB_JOBINDEX");  // the jobs of an array share the id
  const bool is_element = element && element->value > 0;
  const std::string name =
      std::to_string(id->value) + (is_element ? "." + std::to_string(element->value) : "");
  Allocation allocation;
  allocation.manager = {"LSF", "LSF job " + name, id->where, true, true};
  allocation.run_id = {"lsf-" + name, is_element ? id->where + ", " + element->where : id->where};
  allocation.number = id->value + (is_element ? 977 * element->value : 0);
  if (const auto found = find_hosts(job)) {
    allocation.hosts = {found->counts.hosts, found->where};
    allocation.slots = {found->counts.counts, found->where};
  }
  return allocation;
}

std::optional<JobEnvironment> place_of_jsrun(const JobVariables& job, const HostFacts& facts) {
  if (!job.has("JSM_NAMESPACE_RANK") || !job.has("JSM_NAMESPACE_SIZE")) {
    return std::nullopt;
  }
  JobEnvironment place;
  place.manager = {"jsrun", "jsrun", "JSM_NAMESPACE_RANK", true, true};
  read_task(job,
            {"JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK",
             "JSM_NAMESPACE_LOCAL_SIZE"},
            place);
  if (const auto step = job.text("JSM_NAMESPACE_ID")) {
    place.run_id = {"jsrun-" + plain_id(step->value), step->where};
  }
  if (auto allocation = lsf_allocation(job)) {
    drop_launch_host(*allocation);
    add_allocation(*allocation, facts, place);
  }
  return place;
}

std::optional<JobEnvironment> place_of_lsf(const JobVariables& job, const HostFacts& facts) {
  const auto allocation = lsf_allocation(job);
  return allocation ? std::optional(place_of_script(*allocation, facts.hostname)) : std::nullopt;
}

}  // namespace acc::launcher::cluster
