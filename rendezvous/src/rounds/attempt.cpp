// SPDX-License-Identifier: Apache-2.0
#include "rounds/attempt.hpp"

#include <algorithm>

namespace acc::rendezvous::rounds {
namespace {

// Even in a very large round there is room for the report of the machine that failed first.
constexpr std::size_t kMinWordBytes = std::size_t{64} << 10;

/// Bytes of a machine report in the Settled message (docs/protocol.md).
std::size_t bytes_of(const ReportedMachine& word) {
  return sizeof word.machine_rank + 2 * sizeof(std::uint32_t) + word.host.size() +
         word.report.size();
}

}  // namespace

Attempt::Attempt(const std::vector<Agent*>& members)
    : num_awaited_(static_cast<int>(members.size())),
      max_bytes_(std::max(kMinWordBytes, kMaxAnswerBytes / members.size())) {
  members_.reserve(members.size());
  for (const Agent* agent : members) {
    members_.push_back({.host = agent->machine.host, .report = {}});
    member_bytes_ += sizeof(Member) + agent->machine.host.size();
  }
}

void Attempt::report(int rank, Report report) {
  Member& member = members_.at(index(rank));
  // Failed machines have a separate budget: reports of success cannot displace them.
  std::size_t& kept = report.failed ? failed_bytes_ : other_bytes_;
  member.failed = report.failed;
  has_report_ = true;
  if (kept + report.text.size() <= max_bytes_) {
    kept += report.text.size();
    member.report = std::move(report.text);
  }
  stop_waiting(member);
}

void Attempt::lose(int rank) {
  stop_waiting(members_.at(index(rank)));
}

void Attempt::stop_waiting(Member& member) {
  num_awaited_ -= member.is_awaited ? 1 : 0;
  member.is_awaited = false;
}

int Attempt::first_awaited() const {
  return static_cast<int>(std::ranges::find(members_, true, &Member::is_awaited) -
                          members_.begin());
}

std::vector<ReportedMachine> Attempt::words() const {
  // Takes failed machines in a first pass and fills the remaining space with the others.
  std::vector<ReportedMachine> words;
  std::size_t bytes = 0;
  for (const bool failed : {true, false}) {
    for (int rank = 0; rank < static_cast<int>(members_.size()); ++rank) {
      const Member& member = members_[index(rank)];
      ReportedMachine word{rank, member.host, member.report};
      if (member.failed == failed && bytes + bytes_of(word) <= max_bytes_) {
        bytes += bytes_of(word);
        words.push_back(std::move(word));
      }
    }
  }
  std::ranges::sort(words, {}, &ReportedMachine::machine_rank);
  return words;
}

}  // namespace acc::rendezvous::rounds
