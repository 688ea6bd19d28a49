// SPDX-License-Identifier: Apache-2.0
// The launcher's page of the job's membership in C, for programs that begin again in their process.
#include "acc/base/membership_page.hpp"
#include "capi/capi.hpp"

#include <chrono>
#include <cstdint>
#include <limits>
#include <utility>

namespace {
constexpr std::uint32_t kNoEpoch = std::numeric_limits<std::uint32_t>::max();
}  // namespace

struct acc_membership {
  acc::MembershipPage page;
  std::uint32_t epoch = kNoEpoch;  ///< the one that was entered last
  acc::MembershipPage::Meeting meeting = {};
  acc::OwnProcess owner = {};
};

namespace {

using namespace acc::capi;
using std::chrono::milliseconds;

/// Where the ranks of the next epoch meet, which is entered.
void enter(acc_membership& membership, milliseconds timeout) {
  const acc::MembershipPage& page = membership.page;
  while (true) {
    page.await_next(membership.epoch, timeout);
    const std::uint32_t epoch = page.epoch();
    if (auto meeting = page.meeting(epoch)) {
      membership.epoch = epoch;
      membership.meeting = std::move(*meeting);
      return;
    }
  }
}

/// Returns the membership. Throws Error(invalid_argument) if it has entered no epoch.
acc_membership& entered(acc_membership* membership) {
  acc_membership& own = required(membership, "membership");
  if (own.epoch == kNoEpoch) {
    throw acc::Error(acc::Errc::invalid_argument,
                     "no epoch was entered yet: call acc_membership_enter before");
  }
  return own;
}

acc_epoch_state state_of(const acc_membership& membership, milliseconds timeout) {
  const auto begin = std::chrono::steady_clock::now();
  const acc::MembershipPage& page = membership.page;
  while (true) {
    if (page.round_end() || page.begins_no_more()) {
      return ACC_EPOCH_LAST;
    }
    if (page.has_lost(membership.epoch)) {
      return ACC_EPOCH_LOST;
    }
    if (page.has_ended(membership.epoch)) {
      return ACC_EPOCH_ENDED;
    }
    const auto waited = std::chrono::steady_clock::now() - begin;
    if (std::chrono::duration_cast<milliseconds>(waited) >= timeout) {
      return ACC_EPOCH_GOES_ON;
    }
    page.await_news();
  }
}

}  // namespace

acc_status acc_membership_open(const char* path, acc_membership** membership) noexcept {
  return create(membership, "membership",
                [&] { return acc::MembershipPage(string_of(path, "path")); });
}

void acc_membership_free(acc_membership* membership) noexcept {
  release(membership);
}

acc_status acc_membership_enter(acc_membership* membership, int64_t timeout_ms,
                                acc_meeting* meeting) noexcept {
  return guarded([&] {
    acc_membership& own = required(membership, "membership");
    acc_meeting result =
        config_of<acc_meeting>(&required(meeting, "meeting"), ACC_MEETING_INITIALIZER, "meeting");
    enter(own, milliseconds(timeout_ms));
    result.epoch = own.epoch;
    result.host = own.meeting.host.c_str();
    result.port = own.meeting.port;
    result.secret = own.meeting.secret.c_str();
    result.restart_count = own.meeting.restart_count;
    result.machine_rank = own.meeting.machine_rank;
    result.num_machines = own.meeting.num_machines;
    give(meeting, result, "meeting");
  });
}

acc_status acc_membership_state(acc_membership* membership, int64_t timeout_ms,
                                int32_t* state) noexcept {
  return guarded(
      [&] { required(state, "state") = state_of(entered(membership), milliseconds(timeout_ms)); });
}

acc_status acc_membership_joined(acc_membership* membership, int32_t local_rank) noexcept {
  return guarded([&] {
    acc_membership& own = entered(membership);
    own.page.joined(local_rank, own.epoch);
  });
}
