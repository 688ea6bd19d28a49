// SPDX-License-Identifier: Apache-2.0
#include "supervision/supervisor_table.hpp"

#include <doctest/doctest.h>

#include <vector>

namespace acc::launcher::supervision {
namespace {

using enum AttemptAction;

constexpr AttemptState kStates[] = {
    AttemptState::running,  AttemptState::holding, AttemptState::replacing, AttemptState::failing,
    AttemptState::stopping, AttemptState::killing, AttemptState::ended};
constexpr AttemptEvent kEvents[] = {AttemptEvent::worker_succeeded, AttemptEvent::worker_failed,
                                    AttemptEvent::workers_lost,     AttemptEvent::round_formed,
                                    AttemptEvent::cause_is_known,   AttemptEvent::all_ended,
                                    AttemptEvent::stop_signal,      AttemptEvent::peer_failed,
                                    AttemptEvent::time_is_over,     AttemptEvent::all_rejoined};

struct Run {
  AttemptState state = AttemptState::running;
  std::vector<AttemptAction> actions;

  explicit Run(std::initializer_list<AttemptEvent> events) {
    for (const AttemptEvent event : events) {
      const AttemptStep step = attempt_step(state, event);
      state = step.next;
      if (step.action != none) {
        actions.push_back(step.action);
      }
    }
  }
};

using Actions = std::vector<AttemptAction>;

TEST_CASE("attempt table: the transition of each state and event") {
  using enum AttemptState;
  const AttemptStep expected[kAttemptStates][kAttemptEvents] = {{{running, none},
                                                                 {failing, find_cause},
                                                                 {holding, hold},
                                                                 {running, none},
                                                                 {running, none},
                                                                 {ended, finish},
                                                                 {stopping, stop},
                                                                 {stopping, stop},
                                                                 {running, none},
                                                                 {running, none}},
                                                                {{holding, none},
                                                                 {failing, find_cause},
                                                                 {holding, none},
                                                                 {replacing, replace},
                                                                 {holding, none},
                                                                 {holding, none},
                                                                 {stopping, stop},
                                                                 {stopping, stop},
                                                                 {holding, none},
                                                                 {holding, none}},
                                                                {{replacing, none},
                                                                 {failing, find_cause},
                                                                 {holding, hold},
                                                                 {replacing, none},
                                                                 {replacing, none},
                                                                 {ended, finish},
                                                                 {stopping, stop},
                                                                 {stopping, stop},
                                                                 {failing, blame_lost},
                                                                 {running, go_on}},
                                                                {{failing, none},
                                                                 {failing, none},
                                                                 {failing, none},
                                                                 {failing, none},
                                                                 {stopping, stop},
                                                                 {failing, none},
                                                                 {stopping, stop},
                                                                 {stopping, stop},
                                                                 {stopping, stop},
                                                                 {failing, none}},
                                                                {{stopping, none},
                                                                 {stopping, none},
                                                                 {stopping, none},
                                                                 {stopping, none},
                                                                 {stopping, none},
                                                                 {ended, finish},
                                                                 {killing, kill},
                                                                 {stopping, none},
                                                                 {killing, kill},
                                                                 {stopping, none}},
                                                                {{killing, none},
                                                                 {killing, none},
                                                                 {killing, none},
                                                                 {killing, none},
                                                                 {killing, none},
                                                                 {ended, finish},
                                                                 {killing, none},
                                                                 {killing, none},
                                                                 {ended, give_up},
                                                                 {killing, none}},
                                                                {{ended, none},
                                                                 {ended, none},
                                                                 {ended, none},
                                                                 {ended, none},
                                                                 {ended, none},
                                                                 {ended, none},
                                                                 {ended, none},
                                                                 {ended, none},
                                                                 {ended, none},
                                                                 {ended, none}}};
  for (const AttemptState state : kStates) {
    for (const AttemptEvent event : kEvents) {
      CAPTURE(static_cast<int>(state));
      CAPTURE(static_cast<int>(event));
      CHECK(attempt_step(state, event) ==
            expected[static_cast<std::size_t>(state)][static_cast<std::size_t>(event)]);
    }
  }
}

TEST_CASE("attempt table: invariants of all transitions") {
  for (const AttemptState state : kStates) {
    for (const AttemptEvent event : kEvents) {
      const AttemptStep step = attempt_step(state, event);
      // States only advance, except when workers are lost and when all have rejoined.
      CHECK((step.next >= state || event == AttemptEvent::all_rejoined ||
             event == AttemptEvent::workers_lost));
      CHECK((step.next == AttemptState::ended && state != AttemptState::ended) ==
            (step.action == finish || step.action == give_up));
      // The cause may be on another machine, or the lost workers are started again.
      if (state == AttemptState::failing || state == AttemptState::holding) {
        CHECK(attempt_step(state, AttemptEvent::all_ended).next == state);
      } else if (state != AttemptState::ended) {
        CHECK(attempt_step(state, AttemptEvent::all_ended).next == AttemptState::ended);
      }
    }
  }
}

TEST_CASE("attempt table: actions of complete runs") {
  using enum AttemptEvent;
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
  CHECK(Run{workers_lost, all_ended, round_formed, workers_lost, round_formed, all_rejoined,
            worker_succeeded, all_ended}
            .actions == Actions{hold, replace, hold, replace, go_on, finish});
  CHECK(Run{workers_lost, round_formed, all_rejoined, worker_failed, cause_is_known, all_ended}
            .actions == Actions{hold, replace, go_on, find_cause, stop, finish});
  CHECK(Run{workers_lost, round_formed, time_is_over, cause_is_known, workers_lost, all_ended}
            .actions == Actions{hold, replace, blame_lost, stop, finish});
  CHECK(Run{workers_lost, round_formed, worker_failed, cause_is_known, all_rejoined, all_ended}
            .actions == Actions{hold, replace, find_cause, stop, finish});
  CHECK(Run{workers_lost, peer_failed, all_ended}.actions == Actions{hold, stop, finish});
  CHECK(Run{workers_lost, worker_failed, round_formed, cause_is_known, all_ended}.actions ==
        Actions{hold, find_cause, stop, finish});
}

}  // namespace
}  // namespace acc::launcher::supervision
