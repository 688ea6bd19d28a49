// SPDX-License-Identifier: Apache-2.0
#include "job/job_table.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <initializer_list>
#include <vector>

namespace acc::launcher::job {
namespace {

using enum JobState;
using enum JobEvent;
using Action = JobAction;

constexpr JobState kStates[] = {starting, joining,  leaving,          running, failing,     ending,
                                stopping, settling, settling_failure, pausing, withdrawing, over};
constexpr JobEvent kRequests[] = {stop_request, forcing_request, reader_lost};
constexpr JobEvent kEvents[] = {stop_request,  forcing_request, reader_lost, kill_order,
                                worker_failed, failure_known,   stop_known,  join,
                                workers_start, workers_ended,   pause,       finish,
                                fault};

/// A row of the table: all events that change the state or cause an action.
struct Row {
  JobState state;
  struct Entry {
    JobEvent event;
    JobState next;
    Action action = Action::none;
  };
  std::vector<Entry> entries;
};

const std::vector<Row> kRows = {
    {starting,
     {{stop_request, leaving, Action::quit},
      {forcing_request, leaving, Action::quit},
      {reader_lost, leaving, Action::quit},
      {join, joining},
      {finish, over},
      {fault, over}}},
    {joining,
     {{stop_request, leaving, Action::leave},
      {forcing_request, leaving, Action::leave},
      {reader_lost, leaving, Action::leave},
      {workers_start, running},
      {workers_ended, settling},
      {finish, over},
      {fault, over}}},
    {leaving, {{forcing_request, leaving, Action::quit}}},
    {running,
     {{stop_request, stopping, Action::end},
      {forcing_request, stopping, Action::end},
      {reader_lost, stopping, Action::end},
      {kill_order, running, Action::kill},
      {worker_failed, failing, Action::announce},
      {failure_known, failing, Action::follow},
      {stop_known, ending, Action::follow},
      {workers_ended, settling},
      {finish, over},
      {fault, over}}},
    {failing,
     {{stop_request, stopping, Action::note},
      {forcing_request, stopping, Action::kill},
      {reader_lost, stopping, Action::note},
      {kill_order, failing, Action::kill},
      {worker_failed, failing, Action::announce},
      {failure_known, failing, Action::follow},
      {stop_known, ending, Action::follow},
      {workers_ended, settling_failure},
      {finish, over},
      {fault, over}}},
    {ending,
     {{stop_request, stopping, Action::note},
      {forcing_request, stopping, Action::note},
      {reader_lost, stopping, Action::note},
      {kill_order, ending, Action::kill},
      {worker_failed, ending, Action::announce},
      {failure_known, failing, Action::follow},
      {stop_known, ending, Action::follow},
      {workers_ended, settling},
      {finish, over},
      {fault, over}}},
    {stopping,
     {{forcing_request, stopping, Action::kill},
      {kill_order, stopping, Action::kill},
      {worker_failed, stopping, Action::announce},
      {failure_known, stopping, Action::follow},
      {stop_known, stopping, Action::follow},
      {workers_ended, withdrawing},
      {finish, leaving},
      {fault, leaving}}},
    {settling,
     {{stop_request, withdrawing, Action::withdraw},
      {forcing_request, withdrawing, Action::withdraw},
      {reader_lost, withdrawing, Action::withdraw},
      {failure_known, settling_failure},
      {join, joining},
      {pause, pausing},
      {finish, over},
      {fault, over}}},
    {settling_failure,
     {{stop_request, withdrawing, Action::withdraw},
      {forcing_request, withdrawing, Action::hurry},
      {reader_lost, withdrawing, Action::withdraw},
      {stop_known, settling},
      {join, joining},
      {pause, pausing},
      {finish, over},
      {fault, over}}},
    {pausing,
     {{stop_request, withdrawing, Action::withdraw},
      {forcing_request, withdrawing, Action::hurry},
      {reader_lost, withdrawing, Action::withdraw},
      {join, joining},
      {finish, over},
      {fault, over}}},
    {withdrawing,
     {{forcing_request, withdrawing, Action::hurry}, {finish, leaving}, {fault, leaving}}},
    {over, {{stop_request, leaving, Action::quit}, {forcing_request, leaving, Action::quit}}},
};

bool has_stop_request(JobState state) {
  return state == leaving || state == stopping || state == withdrawing;
}

struct Run {
  JobState state = starting;
  std::vector<Action> actions;

  explicit Run(std::initializer_list<JobEvent> events) {
    for (const JobEvent event : events) {
      const JobStep step = job_step(state, event);
      state = step.next;
      if (step.action != Action::none) {
        actions.push_back(step.action);
      }
    }
  }
};

using Actions = std::vector<Action>;

TEST_CASE("job table: the transition of each state and event") {
  REQUIRE(std::size(kStates) == kJobStates);
  REQUIRE(std::size(kEvents) == kJobEvents);
  REQUIRE(kRows.size() == kJobStates);
  for (const Row& row : kRows) {
    for (const JobEvent event : kEvents) {
      CAPTURE(static_cast<int>(row.state));
      CAPTURE(static_cast<int>(event));
      const auto entry = std::ranges::find(row.entries, event, &Row::Entry::event);
      const JobStep expected = entry == row.entries.end() ? JobStep{row.state, Action::none}
                                                          : JobStep{entry->next, entry->action};
      CHECK(job_step(row.state, event) == expected);
    }
  }
}

TEST_CASE("job table: invariants of all transitions") {
  for (const JobState state : kStates) {
    CAPTURE(static_cast<int>(state));
    for (const JobEvent event : kEvents) {
      CAPTURE(static_cast<int>(event));
      const JobStep step = job_step(state, event);
      // A stop request is never forgotten, and no other event makes one.
      const bool is_request = std::ranges::count(kRequests, event) > 0;
      const bool is_too_late = state == over && event == reader_lost;
      CHECK(has_stop_request(step.next) ==
            (has_stop_request(state) || (is_request && !is_too_late)));
      // Workers begin with workers_start, and end with workers_ended, finish or fault.
      if (has_workers(step.next) != has_workers(state)) {
        CHECK(has_workers(state) == (event != workers_start));
        CHECK((event == workers_start || event == workers_ended || event == finish ||
               event == fault));
      }
      for (const Action action :
           {Action::end, Action::note, Action::kill, Action::announce, Action::follow}) {
        CHECK((step.action != action || has_workers(state)));
      }
      // Only a request that may force, and an order of another machine, kill or do not wait.
      if (step.action == Action::kill || step.action == Action::hurry) {
        CHECK((event == forcing_request || event == kill_order));
      }
    }
    CHECK(job_step(state, finish).next == job_step(job_step(state, finish).next, finish).next);
    // After any first request a forcing one does not wait any longer.
    const JobStep second = job_step(job_step(state, stop_request).next, forcing_request);
    CHECK((second.action == Action::kill || second.action == Action::hurry ||
           second.action == Action::quit));
    // Several requests that do not force count once.
    CHECK(job_step(job_step(state, stop_request).next, stop_request).action == Action::none);
  }
}

TEST_CASE("job table: actions of complete runs") {
  const auto attempt_fails = {join, workers_start, worker_failed, failure_known, workers_ended};
  CHECK(Run{join, workers_start, workers_ended, finish}.state == over);
  CHECK(Run{join, finish}.state == over);  // the job ended without a round
  CHECK(Run{join, stop_request}.actions == Actions{Action::leave});
  // The round is formed while the message that gives up the place is on its way.
  CHECK(Run{join, stop_request, workers_start}.state == leaving);
  Run failed(attempt_fails);
  CHECK(failed.state == settling_failure);
  CHECK(failed.actions == Actions{Action::announce, Action::follow});
  CHECK(Run{join, workers_start, worker_failed, workers_ended, pause, join, workers_start}.state ==
        running);
  CHECK(Run{join, workers_start, worker_failed, workers_ended, pause, stop_request, join}.state ==
        withdrawing);
  CHECK(Run{join, workers_start, forcing_request, forcing_request, workers_ended, finish}.actions ==
        Actions{Action::end, Action::kill});
  CHECK(Run{join, workers_start, stop_known, forcing_request, forcing_request}.actions ==
        Actions{Action::follow, Action::note, Action::kill});
  CHECK(Run{join, workers_start, worker_failed, forcing_request}.actions ==
        Actions{Action::announce, Action::kill});
  CHECK(Run{join, workers_start, forcing_request, workers_ended, forcing_request, finish,
            forcing_request}
            .actions == Actions{Action::end, Action::hurry, Action::quit});
}

}  // namespace
}  // namespace acc::launcher::job
