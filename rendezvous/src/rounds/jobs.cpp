// SPDX-License-Identifier: Apache-2.0
#include "rounds/jobs.hpp"

#include "acc/base/error.hpp"

#include <fmt/format.h>

#include <utility>
#include <variant>

namespace acc::rendezvous::rounds {
namespace {

// Limit of finished jobs that are remembered: any client can create jobs and let them end.
constexpr std::size_t kMaxRemembered = 1024;

}  // namespace

void Jobs::receive(AgentId agent, AgentMessage message, Time now, Outbox& out) {
  auto found = by_agent_.find(agent);
  if (found == by_agent_.end()) {
    const auto* enter = std::get_if<Enter>(&message);
    if (enter == nullptr) {
      throw Error(Errc::protocol, "the first message of an agent is not Enter");
    }
    found = by_agent_.emplace(agent, job_of(*enter, now)).first;
  }
  const JobRef job = found->second;
  // The order matters: `fit` before the message is stored, `attended` after the event, when the job
  // may be forgotten.
  fit(message);
  const std::size_t first_letter = out.size();
  const bool leaves = std::holds_alternative<Leave>(message);
  job->membership.receive(agent, std::move(message), beside(job), now, out);
  if (leaves) {
    by_agent_.erase(agent);
  }
  attended(job, now, out, first_letter);
}

void Jobs::lose(AgentId agent, const std::string& why, Time now, Outbox& out) {
  const auto found = by_agent_.find(agent);
  if (found == by_agent_.end()) {
    return;
  }
  const JobRef job = found->second;
  by_agent_.erase(found);
  const std::size_t first_letter = out.size();
  job->membership.lose(agent, why, beside(job), now, out);
  attended(job, now, out, first_letter);
}

void Jobs::pass(Time now, Outbox& out) {
  // Each call of Membership::pass moves the job's deadline past `now` or forgets the job.
  while (next_deadline() <= now) {
    const JobRef job = *by_due_.begin();
    const std::size_t first_letter = out.size();
    job->membership.pass(beside(job), now, out);
    attended(job, now, out, first_letter);
  }
}

Time Jobs::next_deadline() const {
  return by_due_.empty() ? Time::max() : (*by_due_.begin())->due;
}

/// Returns the job that an agent joins; creates it if there is none or if the existing one is over.
Jobs::JobRef Jobs::job_of(const Enter& enter, Time now) {
  auto found = by_run_id_.find(enter.run_id);
  if (found != by_run_id_.end() && !found->second->membership.gives_way_to(enter, now)) {
    make_room(Agents::bytes_of(enter.machine));
    return found->second;
  }
  if (is_closed_) {
    throw Error(Errc::protocol, "the rendezvous server is shutting down: it accepts no new job");
  }
  make_room(Agents::bytes_of(enter.machine) + Membership::bytes_to_found(enter));
  jobs_.push_back({num_created_++, enter.run_id, Membership(enter)});
  const JobRef job = std::prev(jobs_.end());
  by_due_.insert(job);
  by_run_id_.insert_or_assign(enter.run_id, job);
  return job;
}

void Jobs::make_room(std::size_t more_bytes) const {
  if (!has_room(more_bytes)) {
    throw Error(Errc::out_of_memory,
                fmt::format("the server is full: its jobs may take {} bytes", max_bytes_));
  }
}

/// Drops the text of a report or reason for which there is no memory. Running workers matter more
/// than the text about them, so the event itself is processed.
void Jobs::fit(AgentMessage& message) const {
  auto* const end = std::get_if<End>(&message);
  auto* const report = std::get_if<Report>(&message);
  std::string* const text = end != nullptr      ? &end->end.reason
                            : report != nullptr ? &report->text
                                                : nullptr;
  if (text != nullptr && !has_room(text->size())) {
    text->clear();
  }
}

/// Returns the job to mention when machines of `job` wait in vain: the job whose launcher runs this
/// server or, for that job itself, the newest other one. Null in a daemon, which any number of
/// unrelated jobs may use.
const Membership* Jobs::beside(JobRef job) const {
  if (!served_ || jobs_.size() < 2) {
    return nullptr;
  }
  if (*served_ != job) {
    return &(*served_)->membership;
  }
  const Job& last = jobs_.back();
  return &(&last != &*job ? last : *std::prev(jobs_.end(), 2)).membership;
}

/// Updates all tables after an event of `job`: forgets agents that were sent their last message
/// (`out` from `first_letter` on), and refreshes memory, deadline and flags of the job. May forget
/// the job.
void Jobs::attended(JobRef job, Time now, const Outbox& out, std::size_t first_letter) {
  for (std::size_t i = first_letter; i < out.size(); ++i) {
    if (out[i].is_last) {
      by_agent_.erase(out[i].to);
    }
  }
  by_due_.erase(job);  // before job->due, its key, changes
  bytes_ += job->membership.bytes() - std::exchange(job->bytes, job->membership.bytes());
  if (job->membership.is_served_by_its_own()) {
    served_ = job;
  } else if (served_ == job) {
    served_.reset();
  }
  if (job->membership.is_refusing() != job->is_refusing) {
    num_refusing_ -= job->is_refusing ? 1 : 0;
    job->is_refusing = !job->is_refusing;
    num_refusing_ += job->is_refusing ? 1 : 0;
  }
  if (job->membership.is_forgotten(now)) {
    return forget(job);
  }
  job->due = job->membership.next_deadline();
  by_due_.insert(job);
  if (job->membership.is_remembered() && !std::exchange(job->is_remembered, true)) {
    remember(job);
  }
}

/// Remembers a finished job, and forgets the oldest one beyond kMaxRemembered, whatever its
/// JobTimes::close is.
void Jobs::remember(JobRef job) {
  remembered_.push_back(job);
  if (remembered_.size() > kMaxRemembered) {
    forget(remembered_.front());
  }
}

void Jobs::forget(JobRef job) {
  bytes_ -= job->bytes;
  by_due_.erase(job);
  if (job->is_remembered) {
    std::erase(remembered_, job);
  }
  if (served_ == job) {
    served_.reset();
  }
  num_refusing_ -= job->is_refusing ? 1 : 0;
  // A newer job may have taken over the run id.
  const auto named = by_run_id_.find(job->run_id);
  if (named != by_run_id_.end() && named->second == job) {
    by_run_id_.erase(named);
  }
  jobs_.erase(job);
}

}  // namespace acc::rendezvous::rounds
