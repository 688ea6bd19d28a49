// SPDX-License-Identifier: Apache-2.0
#include "job/speaker.hpp"

#include <doctest/doctest.h>

namespace acc::launcher {
namespace {

LaunchPlan plan(int machine_rank, bool merges_output = true) {
  LaunchPlan made;
  made.layout.num_machines = 3;
  made.layout.machine_rank = machine_rank;
  made.manager.merges_output = merges_output;
  return made;
}

}  // namespace

TEST_CASE("speaker: the first machine that has reported prints the report of an attempt") {
  const rendezvous::RoundResult all{{}, {{0, "a", "{}"}, {1, "b", "{}"}, {2, "c", "{}"}}};
  const rendezvous::RoundResult without_0{{}, {{0, "a", ""}, {1, "b", "{}"}, {2, "c", "{}"}}};
  const rendezvous::RoundResult own{{}, {{2, "c", "{}"}}};
  const struct {
    const rendezvous::RoundResult& round_result;
    bool prints[3];
  } cases[] = {
      {all, {true, false, false}},
      {without_0, {true, true, false}},  // machine 0's report is missing
      {own, {true, true, true}},
      {{}, {true, true, true}},
  };
  for (const auto& [round_result, prints] : cases) {
    for (int rank = 0; rank < 3; ++rank) {
      CAPTURE(rank);
      CHECK(job::prints_report(plan(rank), rank, round_result) == prints[rank]);
      CHECK(job::prints_report(plan(rank, false), rank, round_result));
    }
  }
}

TEST_CASE("speaker: machine 0 prints lines about the job, each machine prints its own lines") {
  const std::optional<rendezvous::Round> none;
  rendezvous::Round round;
  round.machine_rank = 1;
  CHECK(job::line_head(plan(0), "n0") == "acclaunch on n0: ");
  CHECK(job::line_head(plan(0, false), "n0") == "acclaunch: ");
  CHECK(job::job_line_head(plan(0), none, "n0") == "acclaunch: ");
  CHECK_FALSE(job::job_line_head(plan(1), none, "n1").has_value());
  CHECK_FALSE(job::job_line_head(plan(0), round, "n0").has_value());
  CHECK(job::job_line_head(plan(1, false), round, "n1") == "acclaunch: ");
  LaunchPlan c10d = plan(0);
  c10d.rendezvous.backend = RendezvousPlan::Backend::c10d;
  CHECK(job::job_line_head(c10d, none, "n1") == "acclaunch on n1: ");
  CHECK_FALSE(job::job_line_head(c10d, round, "n1").has_value());
  LaunchPlan alone = plan(0);
  alone.layout.num_machines = 1;
  CHECK(job::line_head(alone, "n0") == "acclaunch: ");
}

}  // namespace acc::launcher
