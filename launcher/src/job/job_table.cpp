// SPDX-License-Identifier: Apache-2.0
#include "job/job_table.hpp"

#include <array>

namespace acc::launcher::job {
namespace {

using enum JobAction;
constexpr JobState ST = JobState::starting;
constexpr JobState JO = JobState::joining;
constexpr JobState LE = JobState::leaving;
constexpr JobState RU = JobState::running;
constexpr JobState FA = JobState::failing;
constexpr JobState EN = JobState::ending;
constexpr JobState SP = JobState::stopping;
constexpr JobState SE = JobState::settling;
constexpr JobState SF = JobState::settling_failure;
constexpr JobState PA = JobState::pausing;
constexpr JobState WI = JobState::withdrawing;
constexpr JobState OV = JobState::over;

constexpr auto kFirstStep = static_cast<std::size_t>(JobEvent::join);

// A forcing request kills if it is the second request, or if the workers are being ended because of
// a fault: the user does not want to wait. In the state `ending` it is the first one, because a job
// manager or user stops all machines at the same time. A failure in the state `stopping` is
// announced: the workers get the signal only when the other machines know of the stop. The reader
// of the output is not needed any more in the state `over`.
// clang-format off
constexpr std::array<std::array<JobStep, kFirstStep>, kJobStates> kReactions = {{
    //                    stop_request    forcing_request reader_lost     kill_order  worker_failed   failure_known stop_known
    /* starting */         {{{LE, quit},     {LE, quit},     {LE, quit},     {ST, none}, {ST, none},     {ST, none},   {ST, none}}},
    /* joining */          {{{LE, leave},    {LE, leave},    {LE, leave},    {JO, none}, {JO, none},     {JO, none},   {JO, none}}},
    /* leaving */          {{{LE, none},     {LE, quit},     {LE, none},     {LE, none}, {LE, none},     {LE, none},   {LE, none}}},
    /* running */          {{{SP, end},      {SP, end},      {SP, end},      {RU, kill}, {FA, announce}, {FA, follow}, {EN, follow}}},
    /* failing */          {{{SP, note},     {SP, kill},     {SP, note},     {FA, kill}, {FA, announce}, {FA, follow}, {EN, follow}}},
    /* ending */           {{{SP, note},     {SP, note},     {SP, note},     {EN, kill}, {EN, announce}, {FA, follow}, {EN, follow}}},
    /* stopping */         {{{SP, none},     {SP, kill},     {SP, none},     {SP, kill}, {SP, announce}, {SP, follow}, {SP, follow}}},
    /* settling */         {{{WI, withdraw}, {WI, withdraw}, {WI, withdraw}, {SE, none}, {SE, none},     {SF, none},   {SE, none}}},
    /* settling_failure */ {{{WI, withdraw}, {WI, hurry},    {WI, withdraw}, {SF, none}, {SF, none},     {SF, none},   {SE, none}}},
    /* pausing */          {{{WI, withdraw}, {WI, hurry},    {WI, withdraw}, {PA, none}, {PA, none},     {PA, none},   {PA, none}}},
    /* withdrawing */      {{{WI, none},     {WI, hurry},    {WI, none},     {WI, none}, {WI, none},     {WI, none},   {WI, none}}},
    /* over */             {{{LE, quit},     {LE, quit},     {OV, none},     {OV, none}, {OV, none},     {OV, none},   {OV, none}}},
}};

constexpr std::array<std::array<JobState, kJobEvents - kFirstStep>, kJobStates> kLifeCycle = {{
    //                   join workers_start workers_ended pause finish fault
    /* starting */         {JO, ST,           ST,           ST,   OV,    OV},
    /* joining */          {JO, RU,           SE,           JO,   OV,    OV},
    /* leaving */          {LE, LE,           LE,           LE,   LE,    LE},
    /* running */          {RU, RU,           SE,           RU,   OV,    OV},
    /* failing */          {FA, FA,           SF,           FA,   OV,    OV},
    /* ending */           {EN, EN,           SE,           EN,   OV,    OV},
    /* stopping */         {SP, SP,           WI,           SP,   LE,    LE},
    /* settling */         {JO, SE,           SE,           PA,   OV,    OV},
    /* settling_failure */ {JO, SF,           SF,           PA,   OV,    OV},
    /* pausing */          {JO, PA,           PA,           PA,   OV,    OV},
    /* withdrawing */      {WI, WI,           WI,           WI,   LE,    LE},
    /* over */             {OV, OV,           OV,           OV,   OV,    OV},
}};
// clang-format on

}  // namespace

JobStep job_step(JobState state, JobEvent event) noexcept {
  const auto row = static_cast<std::size_t>(state);
  const auto column = static_cast<std::size_t>(event);
  return column < kFirstStep ? kReactions[row][column]
                             : JobStep{kLifeCycle[row][column - kFirstStep], none};
}

}  // namespace acc::launcher::job
