// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/job_news.hpp"
#include "acc/rendezvous/rank_status.hpp"
#include "acc/rendezvous/slowest_rank.hpp"

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace acc::rendezvous {

/// Everything that can be watched of a server's jobs (docs/api.md): their machines, rounds, ranks,
/// events and reports. Pure: the time and all events come in. Memory is bounded: the oldest events,
/// points, reports and finished jobs are dropped. Beyond `limit_bytes`, jobs that are over give way
/// first, then the events and rounds of the job that needs memory. Of a rank for which there is no
/// memory only the numbers are kept; a job for whose ranks there is none has no ranks.
class Board {
 public:
  using Time = std::chrono::system_clock::time_point;
  using JobNumber = std::uint64_t;
  using AgentId = std::uint64_t;

  static constexpr std::size_t kMaxEvents = 256;    ///< per job
  static constexpr std::size_t kMaxPoints = 600;    ///< per job; half of them are recent
  static constexpr std::size_t kMaxRounds = 32;     ///< per job
  static constexpr std::size_t kMaxFinished = 256;  ///< jobs that are over
  static constexpr std::size_t kMaxJobs = 4096;     ///< further jobs are not shown
  static constexpr std::size_t kMaxRanks = std::size_t{1}
                                           << 18;  ///< of all jobs; further: no ranks
  /// With more ranks of all jobs, no lines of stderr are taken.
  static constexpr std::size_t kMaxRanksWithLines = std::size_t{1} << 15;
  static constexpr std::size_t kMaxReportBytes = std::size_t{4} << 20;  ///< of one report
  static constexpr std::size_t kMaxReportsBytes = std::size_t{64} << 20;

  enum class EventKind {
    created,
    joined,
    left,
    lost,
    refused,
    round_formed,
    round_ended,
    job_over,
    report,
  };
  struct Event {
    std::uint64_t number = 0;  ///< one sequence for all jobs, from 1
    Time time{};
    JobNumber job = 0;
    std::string id{};
    EventKind kind{};
    std::string host{};
    std::optional<int> machine_rank{};
    std::optional<int> round{};
    std::string text{};
  };

  enum class JobState { waiting, running, ending, restarting, finished, failed, stopped };
  enum class MachineState { waiting, running, ended, lost, left };
  struct WatchedMachine {
    Machine machine;
    std::optional<int> rank{};  ///< in the last round
    MachineState state = MachineState::waiting;
    std::optional<Time> last_heartbeat{};
    int first_rank = 0;  ///< if it has a rank
  };
  struct WatchedRank {
    RankStatus status;
    int machine_rank = 0;
    std::optional<Time> last_heartbeat{};
    std::optional<Time> last_report{};
    std::optional<Time> waits_since{};  ///< beginning of the collective in which it waits
    Pace pace{};
    mutable std::string text{};  ///< of the HTTP API; empty: it must be written again
  };
  struct RoundMachine {
    std::string host;
    int local_world_size = 1;
  };
  struct WatchedRound {
    int round = 0;
    int restarts = 0;
    Time formed_at{};
    std::optional<Time> ended_at{};
    int world_size = 0;
    std::vector<RoundMachine> machines{};  ///< by machine rank
    std::optional<AttemptEnd> end{};
  };
  struct Point {
    Time time{};
    std::optional<std::int64_t> step{};
    std::optional<double> loss{};
    std::optional<double> tokens_per_s{};
  };
  /// Values of all ranks together.
  struct Summary {
    std::optional<std::int64_t> step{};
    std::optional<double> loss{};
    std::optional<double> tokens_per_s{};
    std::optional<double> learning_rate{};
    std::optional<double> gradient_norm{};
    std::optional<int> slowest_rank{};
    int num_reporting = 0;
    std::optional<Time> last_heartbeat{};
  };
  struct Job {
    JobNumber number = 0;
    std::string id{};
    news::Created terms{};
    bool is_shown = false;  ///< a machine has joined or was refused; a mere question shows no job
    JobState state = JobState::waiting;
    std::string reason{};
    std::optional<int> exit_status{};
    std::string waiting_for{};
    Time created_at{};
    std::optional<Time> ended_at{};
    std::map<AgentId, WatchedMachine> machines{};
    std::deque<WatchedRound> rounds{};
    std::vector<WatchedRank> ranks{};  ///< of the last round, by rank
    std::deque<Event> events{};
    /// Values over time, oldest first: the last kMaxPoints / 2 at full rate, and before them points
    /// of the whole job at least `old_interval` apart, which doubles whenever they are too many.
    std::deque<Point> points{};
    std::size_t num_old_points = 0;
    std::chrono::seconds old_interval{2};
    std::string report{};
    std::uint64_t num_changes = 0;  ///< grows with every change of the job
    std::uint64_t num_layouts = 0;  ///< grows when `ranks` are replaced
    std::size_t bytes = 0;          ///< its part of Board::bytes
    std::size_t rank_bytes = 0;     ///< that of `ranks`
    bool keeps_texts = false;       ///< `WatchedRank::text` is kept
    mutable std::string text{};     ///< of the HTTP API, after `text_of` changes
    mutable std::uint64_t text_of = 0;

    [[nodiscard]] Summary summary() const;
    [[nodiscard]] bool is_over() const { return ended_at.has_value(); }
    [[nodiscard]] const WatchedRound* last_round() const {
      return rounds.empty() ? nullptr : &rounds.back();
    }
  };

  using Listener = std::function<void(const Event&)>;

  /// Calls the listener with each later event, as long as it exists.
  void listen(const std::shared_ptr<Listener>& listener) { listeners_.emplace_back(listener); }
  /// Forgets all jobs. Later events have greater numbers than those so far.
  void clear();
  /// Takes note of what happens in a job. `is_repeated`: after a restart of the server; such news
  /// make no events.
  void tell(JobNumber job, const news::News& news, Time now, bool is_repeated = false);
  /// Takes note of a sign of life of a machine and of its workers, if there are any; ignores ranks
  /// that are not those of its round.
  void update(JobNumber job, AgentId agent, std::vector<RankStatus> ranks, Time now);
  /// Keeps the report of a failed round: JSON, at most kMaxReportBytes. A later one replaces it.
  void keep_report(JobNumber job, std::string json, Time now);

  /// Estimated memory, in bytes, without the texts of at most kMaxRanksWithLines ranks.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  void limit_bytes(std::size_t max_bytes) noexcept { max_bytes_ = max_bytes; }

  /// The shown jobs, the newest first.
  [[nodiscard]] std::vector<const Job*> jobs() const;
  /// Returns the newest shown job of that id; null if there is none.
  [[nodiscard]] const Job* find(std::string_view id) const;
  [[nodiscard]] const Job* find(JobNumber job) const;

 private:
  Job* job_of(JobNumber number);
  void add_event(Job& job, EventKind kind, const WatchedMachine* machine, std::string text);
  void on(Job& job, const news::Created& news);
  void on(Job& job, const news::Joined& news);
  void on(Job& job, const news::Reconnected& news);
  void on(Job& job, const news::Gone& news);
  void on(Job& job, const news::Refused& news);
  void on(Job& job, const news::Waits& news);
  void on(Job& job, const news::Formed& news);
  void on(Job& job, const news::Reported& news);
  void on(Job& job, const news::Ended& news);
  void on(Job& job, const news::Settled& news);
  void on(Job& job, const news::Over& news);
  void show(Job& job);
  void set_ranks(Job& job, const Round& round);
  void drop_ranks(Job& job);
  void end_round(Job& job);
  void add_point(Job& job);
  static void grow_old(Job& job);
  void charge(Job& job, std::size_t more, std::size_t less = 0);
  bool make_room(const Job* job, std::size_t more);
  void drop_machine(Job& job, std::map<AgentId, WatchedMachine>::iterator machine);
  void drop_event(Job& job);
  void drop_round(Job& job);
  void drop_old();
  void drop(std::list<Job>::iterator job);

  std::list<Job> jobs_;  ///< oldest first
  std::map<JobNumber, std::list<Job>::iterator> by_number_;
  std::deque<JobNumber> finished_;  ///< oldest first
  std::deque<JobNumber> reported_;  ///< jobs with a report, oldest first
  std::size_t num_ranks_ = 0;
  std::size_t report_bytes_ = 0;
  std::size_t bytes_ = 0;
  std::size_t max_bytes_ = SIZE_MAX;
  std::uint64_t num_events_ = 0;
  std::vector<std::weak_ptr<Listener>> listeners_;
  // The news that are being processed.
  Time now_{};
  bool is_repeated_ = false;
};

std::string_view to_string(Board::EventKind kind) noexcept;
std::string_view to_string(Board::JobState state) noexcept;
std::string_view to_string(Board::MachineState state) noexcept;
std::string_view to_string(RankStatus::State state) noexcept;
std::string_view to_string(AttemptEnd::Cause cause) noexcept;

}  // namespace acc::rendezvous
