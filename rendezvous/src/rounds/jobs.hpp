// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rounds/membership.hpp"

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace acc::rendezvous::rounds {

/// One machine of a job, for administrators.
struct MachineView {
  AgentId agent = 0;
  Machine machine;
  std::optional<int> rank;  ///< machine rank in its last round
  std::string_view state;
};

/// One job, for administrators.
struct JobView {
  std::string run_id;
  std::string_view phase;
  int num_rounds = 0;
  std::vector<MachineView> machines;
};

/// All jobs of a server, by run id. A pure state machine like `Membership`: time and events come
/// in, messages go out.
///
/// Life cycle of a job: the Enter of its first agent creates it; it exists while an agent is
/// connected, and afterwards while it is remembered so that late machines can be refused. Two jobs
/// with the same run id may exist for a while: a finished one whose agents are still connected, and
/// its successor, which new agents join.
///
/// A recoverable server records every change. The changes, or the saved state and the changes after
/// that, lead to the same jobs in another process: `repeat`, then `recover`.
class Jobs {
 public:
  /// `recovers`: agents may continue on new connections (Welcome::recovers).
  explicit Jobs(bool recovers = false) : recovers_(recovers) {}

  /// Kinds of the changes that are recorded: an event of a job, in two parts; a whole job; that no
  /// new jobs are accepted, or again are (`drain`). The numbers are those of the server's log.
  enum class Change : std::uint8_t { event = 16, job = 17, draining = 18 };
  using Record = std::function<void(Change, std::string_view first, std::string_view second)>;

  /// Passes every change to `record` from now on. None: records nothing.
  void record_with(Record record) { record_ = std::move(record); }
  /// Receives what happens in a job, which has a number.
  using Tell = std::function<void(std::uint64_t job, const news::News& news)>;

  /// Tells everything that happens from now on, including repeated events. At the end of a job that
  /// is forgotten, news::Over is told once more, unless it has been.
  void tell_to(Tell tell) { tell_ = std::move(tell); }
  /// Returns the number of the agent's job; nothing for an agent without a job.
  [[nodiscard]] std::optional<std::uint64_t> job_of(AgentId agent) const;
  /// Makes a recorded change. Throws Error(protocol) if it does not fit the jobs.
  void repeat(Change change, std::string_view first, std::string_view second);
  /// Passes the changes that lead from nothing to the present state to `save`.
  void save(const Record& save) const;
  /// Ends the recovery: agents have the heartbeat timeout from `now` on to connect again. Call
  /// after `record_with`, and before any event.
  void recover(Time now);
  /// Time of the last event that was repeated or is part of a restored job.
  [[nodiscard]] Time last_event() const noexcept { return last_event_; }
  /// One more than the largest id of an agent that was repeated or restored.
  [[nodiscard]] AgentId first_free_agent() const noexcept { return first_free_agent_; }

  /// Passes a message to the agent's job. The first message of an agent is Enter, which names the
  /// job and creates it if necessary. `message` has passed `check`. Throws Error(protocol), with
  /// nothing changed.
  void receive(AgentId agent, AgentMessage message, Time now, Outbox& out);
  /// The agent's connection has ended. Does nothing for an agent without a job.
  void lose(AgentId agent, const std::string& why, Time now, Outbox& out);
  /// Does everything that is due at `now`.
  void pass(Time now, Outbox& out);
  /// Time at which `pass` must be called; Time::max(): never.
  [[nodiscard]] Time next_deadline() const;
  /// Number of jobs, including finished ones that still have agents or are remembered.
  [[nodiscard]] std::size_t size() const noexcept { return jobs_.size(); }
  /// While draining, an Enter that would create a job throws Error(not_supported), with the reason
  /// for the user. Existing jobs go on.
  void drain(bool is_draining);
  [[nodiscard]] bool is_draining() const noexcept { return is_draining_; }
  /// Returns all jobs with their machines, in order of creation.
  [[nodiscard]] std::vector<JobView> view();
  /// Refuses new jobs from now on: an Enter that would create one throws Error(protocol).
  void close() noexcept { is_closed_ = true; }
  /// Estimated memory of all jobs, in bytes.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  /// Limits the memory of all jobs. An Enter that does not fit throws Error(out_of_memory), with
  /// nothing changed. A report or reason that does not fit is dropped and its job continues.
  void limit_bytes(std::size_t max_bytes) noexcept { max_bytes_ = max_bytes; }
  /// True if some job was refused because its machines disagree, and not all of them know yet.
  [[nodiscard]] bool is_refusing() const noexcept { return num_refusing_ > 0; }

 private:
  struct Job {
    std::uint64_t number = 0;  // jobs are numbered in order of creation
    std::string run_id;
    Membership membership;
    std::size_t bytes = 0;       // its part of Jobs::bytes_
    Time due = Time::max();      // its key in Jobs::by_due_
    bool is_remembered = false;  // it is in Jobs::remembered_
    bool is_refusing = false;    // it is counted in Jobs::num_refusing_
    bool was_left = false;       // its last agent has left; it was not lost
  };
  using JobRef = std::list<Job>::iterator;
  /// Jobs with the same deadline are in order of creation. Addresses would differ between runs.
  struct ByDue {
    bool operator()(JobRef a, JobRef b) const {
      return std::pair(a->due, a->number) < std::pair(b->due, b->number);
    }
  };

  JobRef job_of(const Enter& enter, Time now);
  JobRef create(std::uint64_t number, std::string run_id, Membership membership);
  void repeat_event(std::string_view moment, std::string_view what);
  void restore(std::string_view saved);
  void record(const Job& job, AgentId agent, std::string_view what);
  void tell_news(Job& job);
  [[nodiscard]] bool has_room(std::size_t more_bytes) const noexcept {
    return bytes_ <= max_bytes_ && more_bytes <= max_bytes_ - bytes_;
  }
  void make_room(std::size_t more_bytes) const;
  void fit(AgentMessage& message) const;
  [[nodiscard]] const Membership* other_job(JobRef job) const;
  void after_event(JobRef job, Time now, const Outbox& out, std::size_t first_message);
  void refresh(JobRef job, const Outbox& out, std::size_t first_message);
  void remember(JobRef job);
  void forget(JobRef job);

  std::list<Job> jobs_;  // a list, so that a JobRef stays valid
  std::unordered_map<std::uint64_t, JobRef> by_number_;
  std::map<std::string, JobRef> by_run_id_;       // the job that a new agent joins
  std::unordered_map<AgentId, JobRef> by_agent_;  // until the agent's last message or its loss
  std::set<JobRef, ByDue> by_due_;                // every job; the earliest deadline first
  std::deque<JobRef> remembered_;  // finished jobs, kept to refuse late machines; oldest first
  std::optional<JobRef> served_;   // job whose launcher runs this server; none in the daemon
  std::uint64_t num_created_ = 0;
  std::size_t num_refusing_ = 0;
  bool is_closed_ = false;
  bool is_draining_ = false;
  bool recovers_;
  Record record_;
  Tell tell_;
  Time last_event_{};
  AgentId first_free_agent_ = 0;
  std::size_t bytes_ = 0;
  std::size_t max_bytes_ = SIZE_MAX;
};

}  // namespace acc::rendezvous::rounds
