#pragma once

#include "rounds/membership.hpp"

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>

namespace acc::rendezvous::rounds {

/// All jobs of a server, by run id. As pure as `Membership`.
class Jobs {
 public:
  /// The first message of an agent names its job, which begins with it. `message` has passed
  /// `check`. Throws Error(protocol), with nothing changed.
  void receive(AgentId agent, AgentMessage message, Time now, Outbox& out);
  /// Nothing happens for an agent that never named a job, or was dropped.
  void lose(AgentId agent, const std::string& why, Time now, Outbox& out);
  void pass(Time now, Outbox& out);
  [[nodiscard]] Time next_deadline() const;
  /// Those that are over too, while an agent is here or late comers are refused.
  [[nodiscard]] std::size_t size() const noexcept { return jobs_.size(); }
  /// No job begins any more: who would found one breaks the protocol.
  void close() noexcept { is_closed_ = true; }
  /// Memory that they take, about, in bytes.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  /// An agent whose job or place would take more than there is throws Error(out_of_memory), with
  /// nothing changed. A report or a reason that does not fit is not kept, and its job goes on.
  void limit_bytes(std::size_t max_bytes) noexcept { max_bytes_ = max_bytes; }
  /// Machines are still to hear that those of their job disagree.
  [[nodiscard]] bool is_refusing() const noexcept { return num_refusing_ > 0; }

 private:
  struct Job {
    std::string run_id;
    Membership membership;
    std::size_t bytes = 0;
    Time due = Time::max();
    bool is_remembered = false;
    bool is_refusing = false;
  };
  using JobRef = std::list<Job>::iterator;
  struct ByDue {
    bool operator()(JobRef a, JobRef b) const {
      return std::pair(a->due, &*a) < std::pair(b->due, &*b);
    }
  };

  JobRef job_of(const Enter& enter, Time now);
  [[nodiscard]] bool has_room(std::size_t more_bytes) const noexcept {
    return bytes_ <= max_bytes_ && more_bytes <= max_bytes_ - bytes_;
  }
  void make_room(std::size_t more_bytes) const;
  void fit(AgentMessage& message) const;
  [[nodiscard]] const Membership* beside(JobRef job) const;
  void attended(JobRef job, Time now, const Outbox& out, std::size_t first_letter);
  void remember(JobRef job);
  void forget(JobRef job);

  std::list<Job> jobs_;
  std::map<std::string, JobRef> by_run_id_;  // who names it now comes here
  std::unordered_map<AgentId, JobRef> by_agent_;
  std::set<JobRef, ByDue> by_due_;
  std::deque<JobRef> remembered_;  // jobs that are over, for late comers; the oldest first
  std::optional<JobRef> served_;   // the job that this rendezvous goes with; a daemon has none
  std::size_t num_refusing_ = 0;
  bool is_closed_ = false;
  std::size_t bytes_ = 0;
  std::size_t max_bytes_ = SIZE_MAX;
};

}  // namespace acc::rendezvous::rounds
