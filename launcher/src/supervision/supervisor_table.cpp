// SPDX-License-Identifier: Apache-2.0
#include "supervision/supervisor_table.hpp"

#include <array>

namespace acc::launcher::supervision {
namespace {

using enum AttemptAction;
constexpr AttemptState R = AttemptState::running;
constexpr AttemptState H = AttemptState::holding;
constexpr AttemptState P = AttemptState::replacing;
constexpr AttemptState F = AttemptState::failing;
constexpr AttemptState S = AttemptState::stopping;
constexpr AttemptState K = AttemptState::killing;
constexpr AttemptState E = AttemptState::ended;

// Three entries need a reason. A stop signal in the state `stopping` kills: the user pressed Ctrl-C
// again and does not want to wait. all_ended in the state `failing` does nothing: the root cause
// may be a worker of another machine, whose report must be received first. workers_lost in the
// states `failing` and later is a failure like others: nothing is started any more.
// clang-format off
constexpr std::array<std::array<AttemptStep, kAttemptEvents>, kAttemptStates> kTable = {{
    //              succeeded  failed           lost       formed        cause_is_known all_ended    stop_signal  peer_failed  time_is_over     all_rejoined
    /* running */  {{{R, none}, {F, find_cause}, {H, hold}, {R, none},    {R, none}, {E, finish}, {S, stop}, {S, stop}, {R, none},       {R, none}}},
    /* holding */  {{{H, none}, {F, find_cause}, {H, none}, {P, replace}, {H, none}, {H, none},   {S, stop}, {S, stop}, {H, none},       {H, none}}},
    /* replacing */{{{P, none}, {F, find_cause}, {H, hold}, {P, none},    {P, none}, {E, finish}, {S, stop}, {S, stop}, {F, blame_lost}, {R, go_on}}},
    /* failing */  {{{F, none}, {F, none},       {F, none}, {F, none},    {S, stop}, {F, none},   {S, stop}, {S, stop}, {S, stop},       {F, none}}},
    /* stopping */ {{{S, none}, {S, none},       {S, none}, {S, none},    {S, none}, {E, finish}, {K, kill}, {S, none}, {K, kill},       {S, none}}},
    /* killing */  {{{K, none}, {K, none},       {K, none}, {K, none},    {K, none}, {E, finish}, {K, none}, {K, none}, {E, give_up},    {K, none}}},
    /* ended */    {{{E, none}, {E, none},       {E, none}, {E, none},    {E, none}, {E, none},   {E, none}, {E, none}, {E, none},       {E, none}}},
}};
// clang-format on

}  // namespace

std::string_view name_of(AttemptState state) noexcept {
  constexpr std::array<std::string_view, kAttemptStates> kNames = {
      "running", "holding", "replacing", "failing", "stopping", "killing", "ended"};
  return kNames[static_cast<std::size_t>(state)];
}

std::string_view name_of(AttemptEvent event) noexcept {
  constexpr std::array<std::string_view, kAttemptEvents> kNames = {
      "worker succeeded", "worker failed", "workers lost", "round formed", "cause is known",
      "all ended",        "stop signal",   "peer failed",  "time is over", "all rejoined"};
  return kNames[static_cast<std::size_t>(event)];
}

AttemptStep attempt_step(AttemptState state, AttemptEvent event) noexcept {
  return kTable[static_cast<std::size_t>(state)][static_cast<std::size_t>(event)];
}

}  // namespace acc::launcher::supervision
