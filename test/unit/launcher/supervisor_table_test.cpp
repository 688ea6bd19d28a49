// SPDX-License-Identifier: Apache-2.0
#include "supervision/supervisor_table.hpp"

#include <doctest/doctest.h>

#include <vector>

using namespace acc::launcher;
using enum AttemptAction;

namespace {

constexpr supervision::AttemptState kStates[] = {
    supervision::AttemptState::running, supervision::AttemptState::failing,
    supervision::AttemptState::stopping, supervision::AttemptState::killing,
    supervision::AttemptState::ended};
constexpr supervision::AttemptEvent kEvents[] = {
    supervision::AttemptEvent::worker_succeeded, supervision::AttemptEvent::worker_failed,
    supervision::AttemptEvent::cause_is_known,   supervision::AttemptEvent::all_ended,
    supervision::AttemptEvent::stop_signal,      supervision::AttemptEvent::peer_failed,
    supervision::AttemptEvent::time_is_over};

struct Run {
  supervision::AttemptState state = supervision::AttemptState::running;
  std::vector<supervision::AttemptAction> actions;

  explicit Run(std::initializer_list<supervision::AttemptEvent> events) {
    for (const supervision::AttemptEvent event : events) {
      const supervision::AttemptStep step = supervision::attempt_step(state, event);
      state = step.next;
      if (step.action != none) {
        actions.push_back(step.action);
      }
    }
  }
};

using Actions = std::vector<supervision::AttemptAction>;

}  // namespace

TEST_CASE("attempt table: the transition of each state and event") {
  using enum AttemptState;
  const supervision::AttemptStep expected[supervision::kAttemptStates]
                                         [supervision::kAttemptEvents] = {{{running, none},
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
  for (const supervision::AttemptState state : kStates) {
    for (const supervision::AttemptEvent event : kEvents) {
      CAPTURE(static_cast<int>(state));
      CAPTURE(static_cast<int>(event));
      CHECK(supervision::attempt_step(state, event) ==
            expected[static_cast<std::size_t>(state)][static_cast<std::size_t>(event)]);
    }
  }
}

TEST_CASE("attempt table: invariants of all transitions") {
  for (const supervision::AttemptState state : kStates) {
    for (const supervision::AttemptEvent event : kEvents) {
      const supervision::AttemptStep step = supervision::attempt_step(state, event);
      CHECK(step.next >= state);  // states only advance
      CHECK((step.next == supervision::AttemptState::ended &&
             state != supervision::AttemptState::ended) ==
            (step.action == finish || step.action == give_up));
      if (state == supervision::AttemptState::failing) {  // the cause may be on another machine
        CHECK(supervision::attempt_step(state, supervision::AttemptEvent::all_ended).next == state);
      } else if (state != supervision::AttemptState::ended) {
        CHECK(supervision::attempt_step(state, supervision::AttemptEvent::all_ended).next ==
              supervision::AttemptState::ended);
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
}
