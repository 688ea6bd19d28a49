// SPDX-License-Identifier: Apache-2.0
#include "supervision/supervisor_table.hpp"

#include <array>

namespace acc::launcher::supervision {
namespace {

using enum AttemptAction;
constexpr AttemptState R = AttemptState::running;
constexpr AttemptState F = AttemptState::failing;
constexpr AttemptState S = AttemptState::stopping;
constexpr AttemptState K = AttemptState::killing;
constexpr AttemptState E = AttemptState::ended;

// Two entries need a reason. A stop signal in the state `stopping` kills: the user pressed Ctrl-C
// again and does not want to wait. all_ended in the state `failing` does nothing: the root cause
// may be a worker of another machine, whose report must be received first.
// clang-format off
constexpr std::array<std::array<AttemptStep, kAttemptEvents>, kAttemptStates> kTable = {{
    //            succeeded  failed           cause_is_known all_ended    stop_signal  peer_failed  time_is_over
    /* running */ {{{R, none}, {F, find_cause}, {R, none}, {E, finish}, {S, stop}, {S, stop}, {R, none}}},
    /* failing */ {{{F, none}, {F, none},       {S, stop}, {F, none},   {S, stop}, {S, stop}, {S, stop}}},
    /* stopping */{{{S, none}, {S, none},       {S, none}, {E, finish}, {K, kill}, {S, none}, {K, kill}}},
    /* killing */ {{{K, none}, {K, none},       {K, none}, {E, finish}, {K, none}, {K, none}, {E, give_up}}},
    /* ended */   {{{E, none}, {E, none},       {E, none}, {E, none},   {E, none}, {E, none}, {E, none}}},
}};
// clang-format on

}  // namespace

std::string_view name_of(AttemptState state) noexcept {
  constexpr std::array<std::string_view, kAttemptStates> kNames = {"running", "failing", "stopping",
                                                                   "killing", "ended"};
  return kNames[static_cast<std::size_t>(state)];
}

std::string_view name_of(AttemptEvent event) noexcept {
  constexpr std::array<std::string_view, kAttemptEvents> kNames = {
      "worker succeeded", "worker failed", "cause is known", "all ended",
      "stop signal",      "peer failed",   "time is over"};
  return kNames[static_cast<std::size_t>(event)];
}

AttemptStep attempt_step(AttemptState state, AttemptEvent event) noexcept {
  return kTable[static_cast<std::size_t>(state)][static_cast<std::size_t>(event)];
}

}  // namespace acc::launcher::supervision
