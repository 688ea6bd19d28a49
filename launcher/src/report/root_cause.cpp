// SPDX-License-Identifier: Apache-2.0
#include "report/root_cause.hpp"

#include "report/late_ranks.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

namespace acc::launcher::report {
namespace {

/// Parts of the messages with which Gloo, NCCL, torch's store and the C library report that the
/// peer of a connection has ended.
constexpr std::array<std::string_view, 7> kPeerLost = {
    "Connection closed by peer",          "Connection reset by peer",  "Broken pipe",
    "Connection was likely closed",       "remote process has exited", "ncclRemoteError",
    "errors while waiting for send/recv",
};

bool begins_message(std::string_view line) {
  const auto has = [line](std::string_view word) {
    return line.find(word) != std::string_view::npos;
  };
  return has("Error: ") || has("Exception: ") || has("what():");
}

/// Returns the message of the exception that ended the program, if the last lines of its stderr
/// contain one; else the last line.
std::string last_message(const std::vector<std::string>& lines) {
  if (lines.empty()) {
    return "";
  }
  auto begin = lines.end() - 1;
  for (auto line = lines.end(); line != lines.begin();) {
    if (begins_message(*--line)) {
      begin = line;
      break;
    }
  }
  std::string message;
  for (; begin != lines.end(); ++begin) {
    message += *begin + "\n";
  }
  return message;
}

/// True if the worker exited because the connection to a peer was lost, so that the peer, not this
/// worker, failed first.
bool lost_a_peer(const WorkerReport& worker) {
  const std::string message =
      worker.error_message.empty() ? last_message(worker.last_stderr_lines) : worker.error_message;
  return worker.end && worker.end->kind == supervision::ProcessEnd::Kind::exited &&
         std::ranges::any_of(kPeerLost, [&message](std::string_view part) {
           return message.find(part) != std::string::npos;
         });
}

/// The end of a chain of workers, each of which failed because of the next one.
struct ChainEnd {
  /// Empty if the last rank does not know its peer, or only noticed the end of the job, or in a
  /// cycle.
  std::optional<int> rank;
  bool timed_out = false;        ///< a collective of the chain reached its timeout
  std::vector<int> circle = {};  ///< the ranks of a cycle
};

/// Applies the rules of `root_cause`. The constructor follows the chain of each failed worker;
/// `decide` selects from the results.
class Decision {
 public:
  Decision(const std::vector<WorkerReport>& workers, bool is_whole_job)
      : workers_(workers), is_whole_job_(is_whole_job) {
    for (std::size_t i = 0; i < workers.size(); ++i) {
      index_[workers[i].rank] = i;
    }
    for (std::size_t i = 0; i < workers.size(); ++i) {
      if (workers[i].failed()) {
        weigh(i);
      }
    }
  }

  [[nodiscard]] RootCause decide() const {
    const auto earliest = first_failure(workers_);
    if (!earliest) {
      return {};
    }
    if (!victims_of_.empty()) {
      return named(*earliest);
    }
    if (!by_themselves_.empty()) {
      return {earliest_of(by_themselves_), true};
    }
    // All workers that failed have lost a connection and cannot name the peer.
    if (const auto cause = left_early()) {
      return {cause, true};
    }
    // Only guesses are left. They are certain if no other worker can fail, or after a timeout.
    const bool may_others_fail =
        !is_whole_job_ ||
        std::ranges::any_of(workers_, [](const WorkerReport& worker) { return !worker.end; });
    auto cause = among(differing_ranks(workers_));
    cause = cause ? cause : among(late_in_circle());
    cause = cause ? cause : ended_well_before(*earliest);
    return {cause.value_or(*earliest), timed_out_ || !may_others_fail};
  }

 private:
  [[nodiscard]] const WorkerReport* find(int rank) const {
    const auto found = index_.find(rank);
    return found != index_.end() ? &workers_[found->second] : nullptr;
  }

  [[nodiscard]] static const flight::Failure* failure_of(const WorkerReport* worker) {
    return worker != nullptr && worker->flight && worker->flight->failure
               ? &*worker->flight->failure
               : nullptr;
  }

  /// True if a worker was told to end and did so before `victim` failed, who blames it. The victim
  /// has noticed the end of the job, not its cause.
  [[nodiscard]] static bool ended_as_told(const WorkerReport* worker, const WorkerReport& victim) {
    return worker != nullptr && worker->end && worker->told_to_end &&
           worker->moment < victim.moment;
  }

  /// Follows the chain that begins at `rank`: each rank's error names the next one. It ends at a
  /// rank without a failed collective, at one that blames itself or nobody, or in a cycle.
  [[nodiscard]] ChainEnd follow(int rank) const {
    ChainEnd end{rank};
    std::vector<int> seen;
    while (const flight::Failure* failure = failure_of(find(*end.rank))) {
      end.timed_out = end.timed_out || failure->timed_out;
      seen.push_back(*end.rank);
      if (failure->at_fault == end.rank) {
        return end;
      }
      end.rank = failure->at_fault;
      if (end.rank && std::ranges::count(seen, *end.rank) > 0) {
        end.rank.reset();
        end.circle = seen;
      }
      if (!end.rank) {
        return end;
      }
    }
    if (!seen.empty() && !end.timed_out && ended_as_told(find(*end.rank), *find(seen.back()))) {
      end.rank.reset();
    }
    return end;
  }

  /// Counts a failed worker for the rank at the end of its chain, or as failed by itself.
  void weigh(std::size_t index) {
    const WorkerReport& worker = workers_[index];
    const ChainEnd end = follow(worker.rank);
    timed_out_ = timed_out_ || end.timed_out;
    circle_.insert(end.circle.begin(), end.circle.end());
    if (end.rank && *end.rank != worker.rank) {
      ++victims_of_[*end.rank];
    } else if (end.rank && (failure_of(&worker) != nullptr || !lost_a_peer(worker))) {
      by_themselves_.push_back(index);
    }
  }

  /// Rule 1. Returns the rank at the end of most chains. On a tie, prefers one that failed by
  /// itself, then the lowest rank.
  [[nodiscard]] RootCause named(std::size_t earliest) const {
    const auto most = std::ranges::max_element(victims_of_, {}, [this](const auto& each) {
      const WorkerReport* worker = find(each.first);
      return std::tuple(each.second, worker != nullptr && worker->failed(), -each.first);
    });
    const WorkerReport* worker = find(most->first);
    if (worker == nullptr) {
      return {earliest, timed_out_};
    }
    return {index_.at(most->first), worker->end.has_value() || timed_out_};
  }

  [[nodiscard]] std::size_t earliest_of(const std::vector<std::size_t>& indices) const {
    return *std::ranges::min_element(
        indices, {}, [this](std::size_t i) { return std::pair(workers_[i].moment, i); });
  }

  /// Returns the first worker that destroyed its model without an error and ended with status 0.
  [[nodiscard]] std::optional<std::size_t> left_early() const {
    std::vector<std::size_t> left;
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      const WorkerReport& worker = workers_[i];
      if (worker.end && worker.end->ok() && worker.flight && worker.flight->has_left) {
        left.push_back(i);
      }
    }
    return left.empty() ? std::nullopt : std::optional(earliest_of(left));
  }

  /// Returns the first worker that ended with status 0 before `failure`; its peers may have needed
  /// it.
  [[nodiscard]] std::optional<std::size_t> ended_well_before(std::size_t failure) const {
    std::vector<std::size_t> earlier;
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      const WorkerReport& worker = workers_[i];
      if (worker.end && worker.end->ok() && !worker.told_to_end &&
          worker.moment < workers_[failure].moment) {
        earlier.push_back(i);
      }
    }
    return earlier.empty() ? std::nullopt : std::optional(earliest_of(earlier));
  }

  [[nodiscard]] std::optional<std::size_t> among(const std::vector<int>& ranks) const {
    const auto known =
        std::ranges::find_if(ranks, [this](int rank) { return find(rank) != nullptr; });
    return known != ranks.end() ? std::optional(index_.at(*known)) : std::nullopt;
  }

  /// Returns the ranks of a cycle that the others waited for. In a cycle, each rank names another
  /// one as the cause of its failure.
  [[nodiscard]] std::vector<int> late_in_circle() const {
    std::vector<int> late;
    for (const LateRanks& each :
         circle_.empty() ? std::vector<LateRanks>() : late_ranks(workers_, std::nullopt)) {
      std::ranges::copy_if(each.ranks, std::back_inserter(late),
                           [this](int rank) { return circle_.contains(rank); });
    }
    return late;
  }

  const std::vector<WorkerReport>& workers_;
  bool is_whole_job_;
  std::map<int, std::size_t> index_;        ///< index in `workers_`, by rank
  std::vector<std::size_t> by_themselves_;  ///< failed, and not because of a peer
  std::map<int, int> victims_of_;           ///< number of failures of other ranks, by causing rank
  std::set<int> circle_;                    ///< ranks of cycles
  bool timed_out_ = false;                  ///< some chain has a collective that timed out
};

}  // namespace

RootCause root_cause(const std::vector<WorkerReport>& workers, bool is_whole_job) {
  return Decision(workers, is_whole_job).decide();
}

int exit_status(const std::vector<WorkerReport>& workers, std::size_t cause) {
  const auto first = first_failure(workers);
  return workers[workers[cause].failed() || !first ? cause : *first].exit_status();
}

}  // namespace acc::launcher::report
