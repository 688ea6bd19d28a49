// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/board.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <utility>

namespace acc::rendezvous {
namespace {

// Bytes of a text of an event or a reason that are kept. Agents choose these texts.
constexpr std::size_t kMaxText = 1024;
// Shortest time between two points of a job.
constexpr std::chrono::seconds kPointInterval{1};

// Estimated memory of a job without what it contains, and of an entry of a map or a list.
constexpr std::size_t kJobBytes = 4096;
constexpr std::size_t kNodeBytes = 64;

std::size_t bytes_of(const Board::Event& event) {
  return sizeof event + event.id.size() + event.host.size() + event.text.size();
}

std::size_t bytes_of(const Board::WatchedMachine& watched) {
  const Machine& machine = watched.machine;
  return sizeof watched + kNodeBytes + machine.host.size() + machine.address.size() +
         machine.secret.size();
}

std::size_t bytes_of(const Board::WatchedRound& round) {
  std::size_t bytes = sizeof round + round.machines.size() * sizeof(Board::RoundMachine);
  for (const Board::RoundMachine& machine : round.machines) {
    bytes += machine.host.size();
  }
  return bytes;
}

/// What a rank takes in addition to its WatchedRank.
std::size_t bytes_of(const RankStatus& status) {
  const TrainingMetrics& metrics = status.metrics;
  std::size_t bytes = status.collective.size() +
                      (metrics.memory.size() + metrics.values.size()) *
                          (kNodeBytes + sizeof(std::string) + TrainingMetrics::kMaxNameBytes);
  for (const std::string& line : status.last_stderr_lines) {
    bytes += sizeof line + line.size();
  }
  return bytes;
}

void keep_numbers_only(RankStatus& status) {
  status.collective.clear();
  status.metrics.memory.clear();
  status.metrics.values.clear();
  status.last_stderr_lines = {};
}

std::string shortened(std::string text) {
  if (text.size() > kMaxText) {
    text.resize(kMaxText);
    text += "...";
  }
  return text;
}

std::string count(int number, std::string_view what) {
  return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
}

std::string name_of_machine(const std::optional<int>& rank, const std::string& host) {
  return rank ? fmt::format("machine {} ({})", *rank, host) : host;
}

template <typename T>
void set_if_empty(std::optional<T>& to, const std::optional<T>& from) {
  if (!to) {
    to = from;
  }
}

}  // namespace

Board::Summary Board::Job::summary() const {
  Summary all;
  std::vector<const Pace*> paces;
  paces.reserve(ranks.size());
  for (const WatchedRank& each : ranks) {
    const TrainingMetrics& metrics = each.status.metrics;
    set_if_empty(all.step, metrics.step);
    set_if_empty(all.loss, metrics.loss);
    set_if_empty(all.learning_rate, metrics.learning_rate);
    set_if_empty(all.gradient_norm, metrics.gradient_norm);
    if (metrics.tokens_per_s) {
      all.tokens_per_s = all.tokens_per_s.value_or(0.0) + *metrics.tokens_per_s;
    }
    all.num_reporting += each.last_report ? 1 : 0;
    all.last_heartbeat = std::max(all.last_heartbeat, each.last_heartbeat);
    const bool is_running = each.status.state == RankStatus::State::running && !is_over();
    paces.push_back(is_running ? &each.pace : nullptr);
  }
  if (const auto slowest = slowest_rank(paces)) {
    all.slowest_rank = ranks[*slowest].status.rank;
  }
  for (const auto& [agent, machine] : machines) {
    all.last_heartbeat = std::max(all.last_heartbeat, machine.last_heartbeat);
  }
  return all;
}

void Board::charge(Job& job, std::size_t more, std::size_t less) {
  job.bytes += more - less;
  bytes_ += more - less;
}

/// Drops jobs that are over, but not `job`, until there is memory; false if there is none.
bool Board::make_room(const Job* job, std::size_t more) {
  const auto has_room = [&] { return bytes_ <= max_bytes_ && more <= max_bytes_ - bytes_; };
  while (!has_room() && !finished_.empty() &&
         (job == nullptr || finished_.front() != job->number)) {
    drop(by_number_.at(finished_.front()));
    finished_.pop_front();
  }
  return has_room();
}

void Board::drop_machine(Job& job, std::map<AgentId, WatchedMachine>::iterator machine) {
  charge(job, 0, bytes_of(machine->second));
  job.machines.erase(machine);
}

void Board::drop_event(Job& job) {
  charge(job, 0, bytes_of(job.events.front()));
  job.events.pop_front();
}

void Board::drop_round(Job& job) {
  charge(job, 0, bytes_of(job.rounds.front()));
  job.rounds.pop_front();
}

void Board::tell(JobNumber number, const news::News& news, Time now, bool is_repeated) {
  now_ = now;
  is_repeated_ = is_repeated;
  if (std::holds_alternative<news::Created>(news) && !by_number_.contains(number) &&
      jobs_.size() < kMaxJobs && make_room(nullptr, kJobBytes)) {
    Job& job = jobs_.emplace_back();
    charge(job, kJobBytes);
    job.number = number;
    job.created_at = now;
    by_number_[number] = std::prev(jobs_.end());
  }
  if (Job* const job = job_of(number)) {
    ++job->num_changes;
    std::visit([&](const auto& each) { on(*job, each); }, news);
  }
  drop_old();
}

void Board::clear() {
  by_number_.clear();
  finished_.clear();
  reported_.clear();
  jobs_.clear();
  num_ranks_ = report_bytes_ = bytes_ = 0;
}

Board::Job* Board::job_of(JobNumber number) {
  const auto found = by_number_.find(number);
  return found == by_number_.end() ? nullptr : &*found->second;
}

void Board::add_event(Job& job, EventKind kind, const WatchedMachine* machine, std::string text) {
  if (is_repeated_ || !job.is_shown) {
    return;
  }
  Event event{.number = ++num_events_,
              .time = now_,
              .job = job.number,
              .id = job.id,
              .kind = kind,
              .text = shortened(std::move(text))};
  if (machine != nullptr) {
    event.host = machine->machine.host;
    event.machine_rank = machine->rank;
  }
  if (const WatchedRound* const round = job.last_round()) {
    event.round = round->round;
  }
  bool has_room = make_room(&job, bytes_of(event));
  for (; !job.events.empty() && (!has_room || job.events.size() == kMaxEvents);
       has_room = make_room(&job, bytes_of(event))) {
    drop_event(job);
  }
  if (has_room) {
    charge(job, bytes_of(event));
    job.events.push_back(event);
  }
  for (const auto& each : listeners_) {
    if (const auto listener = each.lock()) {
      (*listener)(event);
    }
  }
}

void Board::on(Job& job, const news::Created& news) {
  job.terms = news;
  charge(job, 2 * news.run_id.size());
  const bool is_named = !news.run_id.empty() && news.run_id != "none";  // torchrun's default
  job.id = is_named ? news.run_id : fmt::format("job-{}", job.number + 1);
}

/// Shows a job whose first machine has come.
void Board::show(Job& job) {
  if (!std::exchange(job.is_shown, true)) {
    const news::Created& terms = job.terms;
    const std::string machines =
        terms.min_machines == terms.num_machines
            ? count(terms.num_machines, "machine")
            : fmt::format("{} to {}", terms.min_machines, count(terms.num_machines, "machine"));
    add_event(job, EventKind::created, nullptr,
              fmt::format("the job begins: {}, at most {}", machines,
                          count(terms.max_restarts, "restart")));
  }
}

void Board::on(Job& job, const news::Joined& news) {
  show(job);
  if (const auto before = job.machines.find(news.agent); before != job.machines.end()) {
    drop_machine(job, before);
  }
  WatchedMachine& machine = job.machines[news.agent];
  machine = {.machine = news.machine, .last_heartbeat = now_};
  charge(job, bytes_of(machine));
  add_event(job, EventKind::joined, &machine,
            fmt::format("{} joined (pid {}, {})",
                        name_of_machine(news.machine.machine_rank, news.machine.host),
                        news.machine.pid, count(news.machine.local_world_size, "worker")));
}

void Board::on(Job& job, const news::Reconnected& news) {
  auto moved = job.machines.extract(news.before);
  if (!moved.empty()) {
    moved.key() = news.agent;
    WatchedMachine& machine = job.machines.insert(std::move(moved)).position->second;
    machine.last_heartbeat = now_;
    add_event(
        job, EventKind::joined, &machine,
        fmt::format("{} has connected again", name_of_machine(machine.rank, machine.machine.host)));
  }
}

void Board::on(Job& job, const news::Gone& news) {
  const auto found = job.machines.find(news.agent);
  if (found == job.machines.end()) {
    return;
  }
  using Why = news::Gone::Why;
  const WatchedMachine machine = found->second;
  const std::string name = name_of_machine(machine.rank, machine.machine.host);
  if (machine.rank) {  // shown until the next round
    found->second.state = news.why == Why::lost ? MachineState::lost : MachineState::left;
  } else {
    drop_machine(job, found);
  }
  const bool is_in_round = machine.rank && machine.state == MachineState::running;
  if (is_in_round && !job.ranks.empty()) {
    const auto first = job.ranks.begin() + machine.first_rank;
    for (auto rank = first; rank != first + machine.machine.local_world_size; ++rank) {
      if (rank->status.state <= RankStatus::State::running) {
        rank->status.state = RankStatus::State::lost;
        rank->text.clear();
      }
    }
  }
  const auto [kind, what] = news.why == Why::lost      ? std::pair(EventKind::lost, "is lost")
                            : news.why == Why::refused ? std::pair(EventKind::refused, "is refused")
                                                       : std::pair(EventKind::left, "has left");
  add_event(job, kind, &machine, fmt::format("{} {}: {}", name, what, news.reason));
}

void Board::on(Job& job, const news::Refused& news) {
  show(job);
  const WatchedMachine machine{.machine = news.machine, .rank = news.machine.machine_rank};
  add_event(job, EventKind::refused, &machine,
            fmt::format("{} is refused: {}", name_of_machine(machine.rank, machine.machine.host),
                        news.reason));
}

void Board::on(Job& job, const news::Waits& news) {
  if (job.state == JobState::waiting || job.state == JobState::restarting) {
    job.waiting_for = shortened(news.text);
  }
}

void Board::on(Job& job, const news::Formed& news) {
  const Round& round = news.round;
  for (auto each = job.machines.begin(); each != job.machines.end();) {
    const auto machine = each++;
    if (machine->second.state == MachineState::lost ||
        machine->second.state == MachineState::left) {
      drop_machine(job, machine);
    } else {
      machine->second.rank.reset();  // that of an earlier round
    }
  }
  WatchedRound formed{.round = round.round, .restarts = round.restart_count, .formed_at = now_};
  for (std::size_t rank = 0; rank < news.agents.size(); ++rank) {
    const int size = round.local_world_sizes.at(rank);
    std::string host;
    if (const auto found = job.machines.find(news.agents[rank]); found != job.machines.end()) {
      WatchedMachine& machine = found->second;
      machine.rank = static_cast<int>(rank);
      machine.state = MachineState::running;
      machine.first_rank = formed.world_size;
      machine.machine.local_world_size = size;  // a machine that connects again may change it
      machine.last_heartbeat = now_;
      host = machine.machine.host;
    }
    formed.machines.push_back({std::move(host), size});
    formed.world_size += size;
  }
  const int world_size = formed.world_size;
  const auto num_machines = static_cast<int>(formed.machines.size());
  while (!job.rounds.empty() &&
         (!make_room(&job, bytes_of(formed)) || job.rounds.size() == kMaxRounds)) {
    drop_round(job);
  }
  charge(job, bytes_of(formed));
  job.rounds.push_back(std::move(formed));
  job.state = JobState::running;
  job.waiting_for.clear();
  set_ranks(job, round);
  add_event(job, EventKind::round_formed, nullptr,
            fmt::format("round {} is formed: {}, {}, restart {}", round.round,
                        count(num_machines, "machine"), count(world_size, "worker"),
                        round.restart_count));
}

/// Makes an entry for each rank of a round. A job that does not fit has none.
void Board::set_ranks(Job& job, const Round& round) {
  drop_ranks(job);
  const auto world_size = static_cast<std::size_t>(job.rounds.back().world_size);
  for (const JobNumber old : finished_) {
    Job& finished = *by_number_.at(old);
    if (num_ranks_ + world_size <= kMaxRanks) {
      break;
    }
    drop_ranks(finished);
  }
  const std::size_t bytes = world_size * sizeof(WatchedRank);
  if (num_ranks_ + world_size > kMaxRanks || !make_room(&job, bytes)) {
    return;
  }
  charge(job, job.rank_bytes = bytes);
  job.ranks.reserve(world_size);
  for (int machine = 0; machine < round.num_machines(); ++machine) {
    const int size = round.local_world_sizes[static_cast<std::size_t>(machine)];
    for (int local = 0; local < size; ++local) {
      job.ranks.push_back(
          {.status = {.rank = static_cast<int>(job.ranks.size()), .local_rank = local},
           .machine_rank = machine});
    }
  }
  num_ranks_ += world_size;
  job.keeps_texts = num_ranks_ <= kMaxRanksWithLines;
}

void Board::drop_ranks(Job& job) {
  num_ranks_ -= std::exchange(job.ranks, {}).size();
  charge(job, 0, std::exchange(job.rank_bytes, 0));
  ++job.num_layouts;
  ++job.num_changes;
}

void Board::on(Job& job, const news::Reported& news) {
  if (const auto found = job.machines.find(news.agent); found != job.machines.end()) {
    found->second.state = MachineState::ended;
  }
}

void Board::on(Job& job, const news::Ended& news) {
  if (job.rounds.empty()) {
    return;
  }
  job.state = JobState::ending;
  job.reason = shortened(news.end.reason);
  job.rounds.back().end = news.end;
  job.rounds.back().end->reason = job.reason;
  WatchedMachine machine;
  machine.machine.host = news.end.host;
  if (news.end.machine_rank >= 0) {
    machine.rank = news.end.machine_rank;
  }
  add_event(job, EventKind::round_ended, &machine,
            fmt::format("round {} ends ({}): {}", job.rounds.back().round,
                        news.end.restarts ? "another follows" : "the last one", news.end.reason));
}

void Board::end_round(Job& job) {
  if (!job.rounds.empty()) {
    set_if_empty(job.rounds.back().ended_at, std::optional(now_));
  }
}

void Board::on(Job& job, const news::Settled& /*news*/) {
  end_round(job);
  job.state = JobState::restarting;
  for (auto& [agent, machine] : job.machines) {
    if (machine.state == MachineState::ended) {
      machine.state = MachineState::waiting;
    }
  }
}

void Board::on(Job& job, const news::Over& news) {
  if (job.is_over()) {
    return;
  }
  end_round(job);
  job.ended_at = now_;
  job.waiting_for.clear();
  job.exit_status = news.end ? news.end->exit_status : 0;
  job.state = news.end && news.end->cause == AttemptEnd::Cause::stop ? JobState::stopped
              : job.exit_status == 0                                 ? JobState::finished
                                                                     : JobState::failed;
  job.reason = news.end ? shortened(news.end->reason) : "";
  for (auto& [agent, machine] : job.machines) {
    if (machine.state == MachineState::running || machine.state == MachineState::waiting) {
      machine.state = MachineState::ended;
    }
  }
  add_event(job, EventKind::job_over, nullptr,
            news.end ? fmt::format("the job is over, exit status {}: {}", *job.exit_status,
                                   news.end->reason)
                     : "the job is over: every worker succeeded");
  finished_.push_back(job.number);
}

void Board::update(JobNumber number, AgentId agent, std::vector<RankStatus> ranks, Time now) {
  Job* const job = job_of(number);
  const auto found =
      job != nullptr ? job->machines.find(agent) : std::map<AgentId, WatchedMachine>::iterator{};
  if (job == nullptr || found == job->machines.end()) {
    return;
  }
  WatchedMachine& machine = found->second;
  if (job->is_over() && ranks.empty()) {
    return;
  }
  now_ = now;
  machine.last_heartbeat = now;
  ++job->num_changes;
  if (!machine.rank || job->ranks.empty() || ranks.empty()) {
    return;
  }
  for (RankStatus& status : ranks) {
    const int index = status.rank - machine.first_rank;
    if (index < 0 || index >= machine.machine.local_world_size) {
      continue;
    }
    WatchedRank& rank = job->ranks[static_cast<std::size_t>(status.rank)];
    std::string().swap(rank.text);
    if (status.state == RankStatus::State::running) {
      rank.last_heartbeat = now;
    }
    if (status.report_age) {
      rank.last_report = now - *status.report_age;
    }
    rank.waits_since.reset();
    if (status.waiting_for) {
      rank.waits_since = now - *status.waiting_for;
    }
    rank.pace.add(status, now);
    if (num_ranks_ > kMaxRanksWithLines) {
      status.last_stderr_lines = {};
    }
    const std::size_t before = bytes_of(rank.status);
    if (!make_room(job, bytes_of(status) - std::min(bytes_of(status), before))) {
      keep_numbers_only(status);
    }
    charge(*job, bytes_of(status), before);
    job->rank_bytes += bytes_of(status) - before;
    rank.status = std::move(status);
  }
  add_point(*job);
}

void Board::add_point(Job& job) {
  if (!job.points.empty() && now_ < job.points.back().time + kPointInterval) {
    return;
  }
  const Summary all = job.summary();
  const bool has_changed = job.points.empty() || all.step != job.points.back().step;
  if (!has_changed || (!all.step && !all.loss && !all.tokens_per_s)) {
    return;
  }
  const std::size_t before = job.points.size();
  job.points.push_back({now_, all.step, all.loss, all.tokens_per_s});
  if (job.points.size() - job.num_old_points > kMaxPoints / 2) {
    grow_old(job);
  }
  charge(job, job.points.size() * sizeof(Point), before * sizeof(Point));
}

/// Lets the oldest of the recent points become an old one, or drops it.
void Board::grow_old(Job& job) {
  const auto old = [&](std::size_t i) {
    return job.points.begin() + static_cast<std::ptrdiff_t>(i);
  };
  const std::size_t count = job.num_old_points;
  if (count != 0 && old(count)->time < old(count - 1)->time + job.old_interval) {
    job.points.erase(old(count));
    return;
  }
  ++job.num_old_points;
  if (job.num_old_points == kMaxPoints / 2) {
    for (std::size_t i = 1; i <= job.num_old_points / 2; ++i) {
      job.points.erase(old(i));
    }
    job.num_old_points -= job.num_old_points / 2;
    job.old_interval *= 2;
  }
}

void Board::keep_report(JobNumber number, std::string json, Time now) {
  Job* const job = job_of(number);
  if (job == nullptr || json.size() > kMaxReportBytes || !make_room(job, json.size())) {
    return;
  }
  now_ = now;
  is_repeated_ = false;
  std::erase(reported_, number);
  report_bytes_ += json.size() - job->report.size();
  charge(*job, json.size(), job->report.size());
  job->report = std::move(json);
  reported_.push_back(number);
  while (report_bytes_ > kMaxReportsBytes) {
    Job& oldest = *by_number_.at(reported_.front());
    charge(oldest, 0, oldest.report.size());
    report_bytes_ -= std::exchange(oldest.report, {}).size();
    reported_.pop_front();
  }
  ++job->num_changes;
  add_event(*job, EventKind::report, nullptr, "the report of the failed round has arrived");
}

void Board::drop_old() {
  while (finished_.size() > kMaxFinished) {
    drop(by_number_.at(finished_.front()));
    finished_.pop_front();
  }
  // A job that was only asked about is never shown.
  if (!finished_.empty() && !by_number_.at(finished_.back())->is_shown) {
    drop(by_number_.at(finished_.back()));
    finished_.pop_back();
  }
}

void Board::drop(std::list<Job>::iterator job) {
  num_ranks_ -= job->ranks.size();
  report_bytes_ -= job->report.size();
  bytes_ -= job->bytes;
  std::erase(reported_, job->number);
  by_number_.erase(job->number);
  jobs_.erase(job);
}

std::vector<const Board::Job*> Board::jobs() const {
  std::vector<const Job*> shown;
  for (auto job = jobs_.rbegin(); job != jobs_.rend(); ++job) {
    if (job->is_shown) {
      shown.push_back(&*job);
    }
  }
  return shown;
}

const Board::Job* Board::find(std::string_view id) const {
  const auto all = jobs();
  const auto found = std::ranges::find_if(all, [&](const Job* job) { return job->id == id; });
  return found == all.end() ? nullptr : *found;
}

const Board::Job* Board::find(JobNumber job) const {
  const auto found = by_number_.find(job);
  return found == by_number_.end() || !found->second->is_shown ? nullptr : &*found->second;
}

namespace {

template <typename Enum>
std::string_view word_of(Enum value, std::initializer_list<std::string_view> words) noexcept {
  return words.begin()[static_cast<std::size_t>(value)];
}

}  // namespace

std::string_view to_string(Board::EventKind kind) noexcept {
  return word_of(kind, {"created", "joined", "left", "lost", "refused", "round_formed",
                        "round_ended", "job_over", "report"});
}

std::string_view to_string(Board::JobState state) noexcept {
  return word_of(state,
                 {"waiting", "running", "ending", "restarting", "finished", "failed", "stopped"});
}

std::string_view to_string(Board::MachineState state) noexcept {
  return word_of(state, {"waiting", "running", "ended", "lost", "left"});
}

std::string_view to_string(RankStatus::State state) noexcept {
  return word_of(state, {"starting", "running", "ended", "failed", "stopped", "lost"});
}

std::string_view to_string(AttemptEnd::Cause cause) noexcept {
  return word_of(cause, {"worker", "stop", "other", "membership", "join"});
}

}  // namespace acc::rendezvous
