#include "rounds/sentences.hpp"

#include <fmt/format.h>

namespace acc::rendezvous::rounds {
namespace {

// Of ranks or machines in one sentence: everybody hears it.
constexpr std::size_t kMaxNamed = 16;

}  // namespace

std::string name_of(const std::optional<int>& rank, const std::string& host) {
  return rank ? fmt::format("machine {} ({})", *rank, host) : "machine " + host;
}

std::string describe(const Machine& machine) {
  return machine.machine_rank ? fmt::format("machine {} ({}, pid {})", *machine.machine_rank,
                                            machine.host, machine.pid)
                              : fmt::format("machine {} (pid {})", machine.host, machine.pid);
}

std::string disagreement(const Machine& machine, const Terms& terms, const Machine& other,
                         const Terms& other_terms) {
  const auto differ = [&](std::string_view what, auto value, auto other_value) {
    return fmt::format("{} was started with {} {}, {} with {} {}: start all machines with the same",
                       describe(machine), what, value, describe(other), what, other_value);
  };
  const auto backend = [](const Terms& of) { return of.ranks_are_given ? "static" : "c10d"; };
  if (terms.ranks_are_given != other_terms.ranks_are_given) {
    return differ("--rdzv_backend", backend(terms), backend(other_terms));
  }
  if (terms.num_machines != other_terms.num_machines) {
    return differ("--num_machines", terms.num_machines, other_terms.num_machines);
  }
  if (terms.min_machines != other_terms.min_machines) {
    return differ("a minimum of machines of", terms.min_machines, other_terms.min_machines);
  }
  if (terms.num_processes != other_terms.num_processes) {
    return differ("--num_processes", terms.num_processes, other_terms.num_processes);
  }
  if (terms.max_restarts != other_terms.max_restarts) {
    return differ("--max_restarts", terms.max_restarts, other_terms.max_restarts);
  }
  return "";
}

std::string wrong_total(const std::vector<Agent*>& machines, const Terms& terms) {
  std::int64_t total = 0;
  for (const Agent* agent : machines) {
    total += agent->machine.local_world_size;
  }
  if (terms.num_processes == 0 || terms.is_elastic() || total == terms.num_processes) {
    return "";
  }
  std::string counts;
  for (std::size_t rank = 0; rank < std::min(machines.size(), kMaxNamed); ++rank) {
    const Machine& machine = machines[rank]->machine;
    counts += fmt::format("{}machine {} ({}) brings {}", counts.empty() ? "" : ", ", rank,
                          machine.host, machine.local_world_size);
  }
  return fmt::format("--num_processes {} is the total over all machines, but {}{}: {} in all",
                     terms.num_processes, counts, machines.size() > kMaxNamed ? ", ..." : "",
                     total);
}

std::string wanted(const Terms& terms) {
  return terms.is_elastic() && !terms.ranks_are_given
             ? fmt::format("{} to {}", terms.min_machines, terms.num_machines)
             : std::to_string(terms.num_machines);
}

std::string list_of(const std::set<int>& ranks, std::string_view separator) {
  std::string list;
  std::size_t named = 0;
  for (const int rank : ranks) {
    if (named++ == kMaxNamed) {
      return list + std::string(separator) + "...";
    }
    list += fmt::format("{}{}", list.empty() ? "" : separator, rank);
  }
  return list;
}

std::string seconds(JobTimes::Milliseconds time) {
  return fmt::format("{:.10g} s", std::chrono::duration<double>(time).count());
}

}  // namespace acc::rendezvous::rounds
