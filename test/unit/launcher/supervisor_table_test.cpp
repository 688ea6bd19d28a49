#include "supervision/supervisor_table.hpp"

#include <doctest/doctest.h>

#include <vector>

using namespace acc::launcher;
using enum JobAction;

namespace {

constexpr JobState kStates[] = {JobState::running, JobState::failing, JobState::stopping,
                                JobState::killing, JobState::ended};
constexpr JobEvent kEvents[] = {JobEvent::worker_succeeded, JobEvent::worker_failed,
                                JobEvent::cause_is_known,   JobEvent::all_ended,
                                JobEvent::stop_signal,      JobEvent::peer_failed,
                                JobEvent::time_is_over};

struct Run {
  JobState state = JobState::running;
  std::vector<JobAction> actions;

  explicit Run(std::initializer_list<JobEvent> events) {
    for (const JobEvent event : events) {
      const JobStep step = job_step(state, event);
      state = step.next;
      if (step.action != none) {
        actions.push_back(step.action);
      }
    }
  }
};

using Actions = std::vector<JobAction>;

}  // namespace

TEST_CASE("job table: the transition of each state and event") {
  using enum JobState;
  const JobStep expected[kJobStates][kJobEvents] = {{{running, none},
                                                     {failing, find_cause},
                                                     {running, none},
                                                     {ended, finish},
                                                     {stopping, stop},
                                                     {stopping, stop},
                                                     {running, none}},
                                                    {{failing, none},
                                                     {failing, none},
                                                     {stopping, stop},
                                                     {failing, none},
                                                     {stopping, stop},
                                                     {stopping, stop},
                                                     {stopping, stop}},
                                                    {{stopping, none},
                                                     {stopping, none},
                                                     {stopping, none},
                                                     {ended, finish},
                                                     {killing, kill},
                                                     {stopping, none},
                                                     {killing, kill}},
                                                    {{killing, none},
                                                     {killing, none},
                                                     {killing, none},
                                                     {ended, finish},
                                                     {killing, none},
                                                     {killing, none},
                                                     {ended, give_up}},
                                                    {{ended, none},
                                                     {ended, none},
                                                     {ended, none},
                                                     {ended, none},
                                                     {ended, none},
                                                     {ended, none},
                                                     {ended, none}}};
  for (const JobState state : kStates) {
    for (const JobEvent event : kEvents) {
      CAPTURE(static_cast<int>(state));
      CAPTURE(static_cast<int>(event));
      CHECK(job_step(state, event) ==
            expected[static_cast<std::size_t>(state)][static_cast<std::size_t>(event)]);
    }
  }
}

TEST_CASE("job table: invariants of all transitions") {
  for (const JobState state : kStates) {
    for (const JobEvent event : kEvents) {
      const JobStep step = job_step(state, event);
      CHECK(step.next >= state);  // states only advance
      CHECK((step.next == JobState::ended && state != JobState::ended) ==
            (step.action == finish || step.action == give_up));
      if (state == JobState::failing) {  // the cause may be on another machine
        CHECK(job_step(state, JobEvent::all_ended).next == state);
      } else if (state != JobState::ended) {
        CHECK(job_step(state, JobEvent::all_ended).next == JobState::ended);
      }
    }
  }
}

TEST_CASE("job table: actions of complete runs") {
  using enum JobEvent;
  CHECK(Run{worker_succeeded, worker_succeeded, all_ended}.actions == Actions{finish});
  CHECK(Run{worker_succeeded, worker_failed, worker_failed, cause_is_known, all_ended}.actions ==
        Actions{find_cause, stop, finish});
  CHECK(Run{worker_failed, all_ended, peer_failed, all_ended}.actions ==
        Actions{find_cause, stop, finish});
  CHECK(Run{worker_failed, cause_is_known, time_is_over, worker_failed, all_ended}.actions ==
        Actions{find_cause, stop, kill, finish});
  CHECK(Run{stop_signal, stop_signal, all_ended}.actions == Actions{stop, kill, finish});
  CHECK(Run{peer_failed, peer_failed, worker_failed, all_ended}.actions == Actions{stop, finish});
  CHECK(Run{worker_failed, time_is_over, time_is_over, time_is_over}.actions ==
        Actions{find_cause, stop, kill, give_up});
}
