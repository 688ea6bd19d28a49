// SPDX-License-Identifier: Apache-2.0
#include "rounds/sentences.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace acc::rendezvous::rounds {
namespace {

// Bytes of a differing value that a message quotes, and those of them before the difference.
constexpr std::size_t kMaxShown = 80;
constexpr std::size_t kShownBefore = 20;

/// Returns the start of the UTF-8 character at `at`, so that a cut does not split a character.
std::size_t character_at(std::string_view text, std::size_t at) {
  while (at > 0 && at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) {
    --at;
  }
  return at;
}

/// Replaces control characters: the text comes from another machine and may go to a terminal.
std::string one_line(std::string_view text) {
  std::string line(text);
  std::ranges::replace_if(
      line, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, ' ');
  return line;
}

/// Quotes `value`. A long value is cut to kMaxShown bytes around the first difference to `other`.
std::string shown(std::string_view value, std::string_view other) {
  if (value.empty()) {
    return "\"\"";
  }
  if (value.size() <= kMaxShown) {
    return one_line(value);
  }
  const auto differing = std::ranges::mismatch(value, other).in1;
  const auto at = static_cast<std::size_t>(differing - value.begin());
  const std::size_t begin = at > kShownBefore ? character_at(value, at - kShownBefore) : 0;
  const std::size_t end = character_at(value, std::min(begin + kMaxShown, value.size()));
  return fmt::format("{}{}{}", begin > 0 ? "..." : "", one_line(value.substr(begin, end - begin)),
                     end < value.size() ? "..." : "");
}

const std::string* find(const Agreed& agreed, std::string_view name) {
  const auto found = std::ranges::find(agreed, name, &Agreed::value_type::first);
  return found == agreed.end() ? nullptr : &found->second;
}

/// Returns the first name that only one side has or whose values differ; null if there is none.
const std::string* first_difference(const Agreed& agreed, const Agreed& other) {
  for (const auto& [name, value] : agreed) {
    const std::string* const there = find(other, name);
    if (there == nullptr || *there != value) {
      return &name;
    }
  }
  for (const auto& [name, value] : other) {
    if (find(agreed, name) == nullptr) {
      return &name;
    }
  }
  return nullptr;
}

/// Returns "with --zero_stage 3", or "without --zero_stage" if `value` is null.
std::string with(const std::string& name, const std::string* value, const std::string* other) {
  return value == nullptr
             ? "without " + one_line(name)
             : fmt::format("with {} {}", one_line(name),
                           shown(*value, other == nullptr ? "" : std::string_view(*other)));
}

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
  constexpr std::pair<std::string_view, int Terms::*> kNumbers[] = {
      {"--num_machines", &Terms::num_machines},
      {"a minimum number of machines of", &Terms::min_machines},
      {"--num_processes", &Terms::num_processes},
      {"--max_restarts", &Terms::max_restarts}};
  for (const auto& [what, number] : kNumbers) {
    if (terms.*number != other_terms.*number) {
      return differ(what, terms.*number, other_terms.*number);
    }
  }
  if (const std::string* name = first_difference(terms.agreed, other_terms.agreed)) {
    const std::string* const value = find(terms.agreed, *name);
    const std::string* const other_value = find(other_terms.agreed, *name);
    return fmt::format("{} was started {}, {} {}: start all machines with the same{}",
                       describe(machine), with(*name, value, other_value), describe(other),
                       with(*name, other_value, value),
                       terms.ranks_are_given ? "" : ", or give another job its own --rdzv_id");
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

std::string list_of(const std::vector<int>& ranks, std::string_view separator) {
  const auto named = static_cast<std::ptrdiff_t>(std::min(ranks.size(), kMaxNamed));
  return fmt::format("{}{}", fmt::join(ranks.begin(), ranks.begin() + named, separator),
                     ranks.size() > kMaxNamed ? std::string(separator) + "..." : "");
}

std::string machine_ranks(const std::vector<int>& ranks) {
  return fmt::format("machine rank{} {}", ranks.size() == 1 ? "" : "s", list_of(ranks, ","));
}

std::string seconds(JobTimes::Milliseconds time) {
  return fmt::format("{:.10g} s", std::chrono::duration<double>(time).count());
}

}  // namespace acc::rendezvous::rounds
