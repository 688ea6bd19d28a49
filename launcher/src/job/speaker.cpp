// SPDX-License-Identifier: Apache-2.0
#include "job/speaker.hpp"

#include <algorithm>

namespace acc::launcher::job {

using rendezvous::ReportedMachine;

namespace {

bool shares_console(const LaunchPlan& plan) {
  return plan.manager.merges_output && plan.layout.num_machines > 1;
}

}  // namespace

std::string line_head(const LaunchPlan& plan, const std::string& host) {
  return shares_console(plan) ? "acclaunch on " + host + ": " : "acclaunch: ";
}

std::optional<std::string> job_line_head(const LaunchPlan& plan,
                                         const std::optional<rendezvous::Round>& round,
                                         const std::string& host) {
  const bool knows_rank = round || plan.rendezvous.backend != RendezvousPlan::Backend::c10d ||
                          plan.rendezvous.machine_rank_was_given;
  if (!shares_console(plan) || !knows_rank) {
    return line_head(plan, host);
  }
  const int machine_rank = round ? round->machine_rank : plan.layout.machine_rank;
  return machine_rank == 0 ? std::optional("acclaunch: ") : std::nullopt;
}

bool prints_report(const LaunchPlan& plan, int machine_rank,
                   const rendezvous::RoundResult& round_result) {
  const auto& machines = round_result.machines;
  const auto has_reported = [](const ReportedMachine& word) { return !word.report.empty(); };
  const auto is_heard = [&](const ReportedMachine& word) {
    return has_reported(word) && word.machine_rank == machine_rank;
  };
  return !shares_console(plan) || std::ranges::none_of(machines, is_heard) ||
         is_heard(*std::ranges::find_if(machines, has_reported));
}

}  // namespace acc::launcher::job
