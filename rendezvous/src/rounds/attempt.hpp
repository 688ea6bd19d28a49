// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rounds/agents.hpp"
#include "rounds/messages.hpp"

#include <string>
#include <vector>

namespace acc::rendezvous::rounds {

/// The machines of one round and their reports. A round is over when `num_awaited` is 0.
///
/// The round result with all reports is sent to every machine. With M machines a report therefore
/// costs M times its size, so the reports that are kept are limited to kMaxAnswerBytes / M bytes,
/// at least 64 KiB. Reports of failed machines have priority.
class Attempt {
 public:
  Attempt() = default;
  /// `members` are in order of machine rank.
  explicit Attempt(const std::vector<Agent*>& members);

  void report(int rank, Report report);
  /// The machine is lost: its report is not awaited any more. A report that has arrived is kept.
  void lose(int rank);

  /// Number of machines that have neither reported nor been lost.
  [[nodiscard]] int num_awaited() const noexcept { return num_awaited_; }
  /// True if any machine has reported. While the attempt has not ended, such a report means
  /// success.
  [[nodiscard]] bool has_report() const noexcept { return has_report_; }
  /// Lowest rank of the awaited machines. Requires num_awaited() > 0.
  [[nodiscard]] int first_awaited() const;
  [[nodiscard]] const std::string& host(int rank) const { return members_.at(index(rank)).host; }

  /// Returns the machine reports in order of machine rank, for the round result. If they do not all
  /// fit, those of failed machines are chosen first.
  [[nodiscard]] std::vector<ReportedMachine> words() const;

  /// Encodes or decodes it (codec.hpp).
  template <typename Coder, typename Self>
  static void code(Coder& coder, Self& self) {
    coder(self.members_, self.num_awaited_, self.has_report_, self.member_bytes_, self.max_bytes_,
          self.failed_bytes_, self.other_bytes_);
  }

  /// Estimated memory, in bytes.
  [[nodiscard]] std::size_t bytes() const noexcept {
    return member_bytes_ + failed_bytes_ + other_bytes_;
  }

 private:
  struct Member {
    std::string host;
    bool is_awaited = true;
    bool failed = false;
    std::string report;  ///< empty: none, or it did not fit
  };
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  void stop_waiting(Member& member);

  std::vector<Member> members_;
  int num_awaited_ = 0;
  bool has_report_ = false;
  std::size_t member_bytes_ = 0;
  std::size_t max_bytes_ = 0;     // limit of the result of words()
  std::size_t failed_bytes_ = 0;  // kept reports of failed machines
  std::size_t other_bytes_ = 0;   // kept reports of the others
};

}  // namespace acc::rendezvous::rounds
