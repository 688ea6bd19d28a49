// SPDX-License-Identifier: Apache-2.0
#include "rounds/jobs.hpp"

#include "acc/base/error.hpp"
#include "rounds/codec.hpp"

#include <fmt/format.h>

#include <utility>
#include <variant>

namespace acc::rendezvous::rounds {
namespace {

// Limit of finished jobs that are remembered: any client can create jobs and let them end.
constexpr std::size_t kMaxRemembered = 1024;

std::string encoded(const Occurrence& what) {
  return encoded_all(what);
}

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
  // The order matters: `fit` before the message is stored, `after_event` last, because it may
  // forget the job.
  fit(message);
  const std::size_t first_message = out.size();
  if (std::holds_alternative<Status>(message) || std::holds_alternative<FailureReport>(message)) {
    message = Beat{};  // for those who watch; to the job it is a sign of life
  }
  const bool leaves = std::holds_alternative<Leave>(message);
  const auto* enter = std::get_if<Enter>(&message);
  const auto replaced = enter != nullptr ? job->membership.id_of(enter->agent) : std::nullopt;
  const std::string what =
      record_ && !std::holds_alternative<Beat>(message) ? encoded(message) : "";
  job->membership.receive(agent, std::move(message), other_job(job), now, out);
  if (!what.empty()) {
    record(*job, agent, what);
  }
  job->was_left = leaves;
  if (leaves) {
    by_agent_.erase(agent);
  }
  if (replaced && *replaced != agent) {
    by_agent_.erase(*replaced);
  }
  after_event(job, now, out, first_message);
}

void Jobs::lose(AgentId agent, const std::string& why, Time now, Outbox& out) {
  const auto found = by_agent_.find(agent);
  if (found == by_agent_.end()) {
    return;
  }
  const JobRef job = found->second;
  by_agent_.erase(found);
  job->was_left = false;
  const std::size_t first_message = out.size();
  job->membership.lose(agent, why, other_job(job), now, out);
  if (record_) {
    record(*job, agent, encoded(Lost{why}));
  }
  after_event(job, now, out, first_message);
}

void Jobs::pass(Time now, Outbox& out) {
  // Each call of Membership::pass moves the job's deadline past `now` or forgets the job.
  while (next_deadline() <= now) {
    const JobRef job = *by_due_.begin();
    const std::size_t first_message = out.size();
    for (const auto& [agent, what] : job->membership.pass(other_job(job), now, out)) {
      if (record_) {
        record(*job, agent, encoded(what));
      }
    }
    after_event(job, now, out, first_message);
  }
}

Time Jobs::next_deadline() const {
  return by_due_.empty() ? Time::max() : (*by_due_.begin())->due;
}

/// Returns the job that an agent joins; creates it if there is none or if the existing one is over.
Jobs::JobRef Jobs::job_of(const Enter& enter, Time now) {
  auto found = by_run_id_.find(enter.run_id);
  // An agent that comes back belongs to its job, also if that is over and another has its run id.
  for (JobRef job = jobs_.begin(); enter.round && job != jobs_.end(); ++job) {
    if (job->run_id == enter.run_id && job->membership.id_of(enter.agent)) {
      return job;
    }
  }
  if (found != by_run_id_.end() && !found->second->membership.gives_way_to(enter, now)) {
    make_room(Agents::bytes_of(enter.machine) + 2 * enter.agent.size());
    return found->second;
  }
  if (is_closed_) {
    throw Error(Errc::protocol, "the rendezvous server is shutting down: it accepts no new job");
  }
  if (is_draining_) {
    throw Error(Errc::not_supported,
                "the rendezvous accepts no new jobs: its administrator drains it");
  }
  make_room(Agents::bytes_of(enter.machine) + 2 * enter.agent.size() +
            Membership::bytes_to_found(enter));
  return create(num_created_, enter.run_id, Membership(enter, recovers_));
}

std::vector<JobView> Jobs::view() {
  constexpr std::string_view kStates[] = {"waiting",  "running", "leaving",
                                          "reported", "settled", "done"};
  std::vector<JobView> jobs;
  for (Job& job : jobs_) {
    JobView view{job.run_id, job.membership.phase_name(), job.membership.num_rounds(), {}};
    for (const Agent* agent : job.membership.members()) {
      view.machines.push_back({agent->id, agent->machine, agent->rank,
                               kStates[static_cast<std::size_t>(agent->state)]});
    }
    jobs.push_back(std::move(view));
  }
  return jobs;
}

Jobs::JobRef Jobs::create(std::uint64_t number, std::string run_id, Membership membership) {
  num_created_ = std::max(num_created_, number + 1);
  jobs_.push_back({number, run_id, std::move(membership)});
  const JobRef job = std::prev(jobs_.end());
  by_due_.insert(job);
  by_number_.emplace(number, job);
  by_run_id_.insert_or_assign(std::move(run_id), job);
  return job;
}

void Jobs::record(const Job& job, AgentId agent, std::string_view what) {
  const auto [at, stalled] = job.membership.moment();
  record_(Change::event, encoded_all(job.number, at, stalled, agent), what);
}

void Jobs::drain(bool is_draining) {
  if (std::exchange(is_draining_, is_draining) != is_draining && record_) {
    record_(Change::draining, encoded_all(is_draining), "");
  }
}

void Jobs::repeat(Change change, std::string_view first, std::string_view second) {
  switch (change) {
    case Change::event: return repeat_event(first, second);
    case Change::job: return restore(first);
    case Change::draining: return decode_all(first, is_draining_);
  }
  throw Error(Errc::protocol,
              fmt::format("a change of the jobs has kind {}", static_cast<int>(change)));
}

void Jobs::repeat_event(std::string_view moment, std::string_view what) {
  JobEvent event;
  decode_all(moment, event.job, event.at, event.stalled, event.agent);
  decode_all(what, event.what);
  const auto* message = std::get_if<AgentMessage>(&event.what);
  const auto* enter = message != nullptr ? std::get_if<Enter>(message) : nullptr;
  auto found = by_number_.find(event.job);
  if (message != nullptr) {
    check(*message);
  }
  if (found == by_number_.end()) {
    if (enter == nullptr) {
      throw Error(Errc::protocol, fmt::format("an event belongs to job number {}, which does not "
                                              "exist",
                                              event.job));
    }
    create(event.job, enter->run_id, Membership(*enter, recovers_));
    found = by_number_.find(event.job);
  }
  const JobRef job = found->second;
  last_event_ = std::max(last_event_, event.at + event.stalled);
  first_free_agent_ = std::max(first_free_agent_, event.agent + 1);
  if (std::holds_alternative<Forgotten>(event.what)) {
    return forget(job);
  }
  if (enter != nullptr) {
    if (const auto replaced = job->membership.id_of(enter->agent)) {
      by_agent_.erase(*replaced);
    }
    by_agent_.emplace(event.agent, job);
  } else if (message == nullptr ? std::holds_alternative<Lost>(event.what)
                                : std::holds_alternative<Leave>(*message)) {
    by_agent_.erase(event.agent);
  }
  Outbox out;
  job->membership.repeat(std::move(event), out);
  refresh(job, out, 0);
}

void Jobs::save(const Record& save) const {
  if (is_draining_) {
    save(Change::draining, encoded_all(is_draining_), "");
  }
  for (const Job& job : jobs_) {
    save(Change::job, encoded_all(job.number, job.run_id, job.membership.save()), "");
  }
}

/// Adds a job that `save` has encoded; jobs are added in the order of `save`.
void Jobs::restore(std::string_view saved) {
  std::uint64_t number = 0;
  std::string run_id;
  std::string membership;
  decode_all(saved, number, run_id, membership);
  const JobRef job = create(number, std::move(run_id), Membership(membership, recovers_));
  const auto [at, stalled] = job->membership.moment();
  last_event_ = std::max(last_event_, at + stalled);
  for (const Agent* agent : job->membership.members()) {
    by_agent_.emplace(agent->id, job);
    first_free_agent_ = std::max(first_free_agent_, agent->id + 1);
  }
  refresh(job, {}, 0);
}

void Jobs::recover(Time now) {
  for (JobRef job = jobs_.begin(); job != jobs_.end();) {
    const JobRef next = std::next(job);
    job->membership.recover(now);
    record(*job, 0, encoded(Recovered{}));
    after_event(job, now, {}, 0);
    job = next;
  }
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
const Membership* Jobs::other_job(JobRef job) const {
  if (!served_ || jobs_.size() < 2) {
    return nullptr;
  }
  if (*served_ != job) {
    return &(*served_)->membership;
  }
  const Job& last = jobs_.back();
  return &(&last != &*job ? last : *std::prev(jobs_.end(), 2)).membership;
}

void Jobs::tell_news(Job& job) {
  for (const news::News& news : job.membership.take_news()) {
    if (tell_) {
      tell_(job.number, news);
    }
  }
}

std::optional<std::uint64_t> Jobs::job_of(AgentId agent) const {
  const auto found = by_agent_.find(agent);
  return found == by_agent_.end() ? std::nullopt : std::optional(found->second->number);
}

/// Updates all tables after an event of `job`. May forget the job.
void Jobs::after_event(JobRef job, Time now, const Outbox& out, std::size_t first_message) {
  refresh(job, out, first_message);
  if (job->membership.is_forgotten(now)) {
    return forget(job);
  }
  if (job->membership.is_remembered() && !std::exchange(job->is_remembered, true)) {
    remember(job);
  }
}

/// Forgets agents that were sent their last message (`out` from `first_message` on), and refreshes
/// memory, deadline and flags of the job.
void Jobs::refresh(JobRef job, const Outbox& out, std::size_t first_message) {
  for (std::size_t i = first_message; i < out.size(); ++i) {
    if (out[i].is_last) {
      by_agent_.erase(out[i].to);
    }
  }
  tell_news(*job);
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
  job->due = job->membership.next_deadline();
  by_due_.insert(job);
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
  if (record_) {
    record(*job, 0, encoded(Forgotten{}));
  }
  if (tell_ && !job->membership.has_ended()) {
    tell_(job->number,
          news::Over{AttemptEnd{
              .exit_status = 1,
              .cause = job->was_left ? AttemptEnd::Cause::stop : AttemptEnd::Cause::other,
              .reason = "every machine has left before the end of the job"}});
  }
  by_number_.erase(job->number);
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
