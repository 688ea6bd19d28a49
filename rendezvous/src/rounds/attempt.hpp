#pragma once

#include "rounds/agents.hpp"
#include "rounds/messages.hpp"

#include <string>
#include <vector>

namespace acc::rendezvous::rounds {

/// The machines of one round and what they have reported.
class Attempt {
 public:
  Attempt() = default;
  /// By machine rank.
  explicit Attempt(const std::vector<Agent*>& members);

  void report(int rank, Report report);
  /// It will not report any more, unless it has.
  void lose(int rank);

  /// Machines whose reports are still to come.
  [[nodiscard]] int num_awaited() const noexcept { return num_awaited_; }
  /// Whether any has come: before the attempt is ended, that is a success.
  [[nodiscard]] bool has_report() const noexcept { return has_report_; }
  /// The first of those awaited. There has to be one.
  [[nodiscard]] int first_awaited() const;
  [[nodiscard]] const std::string& host(int rank) const { return members_.at(index(rank)).host; }

  /// By machine rank, of many machines those that failed before the others, as far as they fit:
  /// every one of them hears it all.
  [[nodiscard]] std::vector<MachineWord> words() const;
  /// All have heard the words.
  void forget_reports();

  /// Memory that this takes, about.
  [[nodiscard]] std::size_t bytes() const noexcept {
    return member_bytes_ + failed_bytes_ + other_bytes_;
  }

 private:
  struct Member {
    std::string host;
    bool is_awaited = true;
    bool failed = false;
    std::string report;  ///< "": none
  };
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  void stop_waiting(Member& member);

  std::vector<Member> members_;
  int num_awaited_ = 0;
  bool has_report_ = false;
  std::size_t member_bytes_ = 0;
  std::size_t max_bytes_ = 0;     // of what words() says
  std::size_t failed_bytes_ = 0;  // of the reports that are kept
  std::size_t other_bytes_ = 0;
};

}  // namespace acc::rendezvous::rounds
