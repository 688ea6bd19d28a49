// SPDX-License-Identifier: Apache-2.0
#include "rounds_simulation.hpp"

#include "acc/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace acc::rendezvous::rounds::test {
namespace {

using namespace std::chrono_literals;

constexpr std::array kAgentWords{"Enter",  "Rejoin", "Beat",  "End",
                                 "Insist", "Report", "Leave", "Away"};
constexpr std::array kServerWords{"Welcome",     "Beat",    "Waiting", "Formed",   "Ends",
                                  "KillWorkers", "Settled", "Dropped", "Elsewhere"};

}  // namespace

Simulation::Simulation(std::uint64_t seed, int num_machines, Mode mode)
    : chance_(seed),
      recovers_(mode != Mode::forgets),
      is_fenced_(mode != Mode::unfenced),
      jobs_(std::make_unique<Jobs>(recovers_)),
      machines_(static_cast<std::size_t>(num_machines)) {
  if (recovers_) {
    record();
  }
  slowest_ = std::array{5ms, 500ms, 5000ms}[draw(3)];
  pause_between_faults_ = std::array{2s, 20s, 60s}[draw(3)];
  found_jobs();
}

void Simulation::found_jobs() {
  const std::size_t num_jobs = 1 + draw(std::min<std::uint64_t>(3, machines_.size()));
  const auto per_job = static_cast<std::uint64_t>(machines_.size() / num_jobs);
  const std::array heartbeats{500ms, 5000ms, 30000ms};
  for (std::size_t job = 0; job < num_jobs; ++job) {
    Terms terms;
    terms.num_machines = 1 + static_cast<int>(draw(per_job + 1));
    terms.min_machines =
        happens(2) ? terms.num_machines
                   : 1 + static_cast<int>(draw(static_cast<std::uint64_t>(terms.num_machines)));
    if (machines_.size() > 100) {  // so many are hardly ever connected at the same time
      terms.num_machines = static_cast<int>(per_job);
      terms.min_machines = terms.num_machines / 2;
    }
    terms.ranks_are_given = terms.min_machines == terms.num_machines && happens(2);
    terms.max_restarts = static_cast<int>(draw(4));
    terms_.push_back(terms);
    times_.push_back({.join = 2s + up_to(60s),
                      .last_call = happens(4) ? 0ms : up_to(10s),
                      .heartbeat = heartbeats[draw(heartbeats.size())],
                      .settle = 5s + up_to(60s),
                      .close = up_to(30s)});
  }
  for (std::size_t i = 0; i < machines_.size(); ++i) {
    Machine& machine = machines_[i];
    machine.job = static_cast<int>(i % num_jobs);
    const auto job = static_cast<std::size_t>(machine.job);
    machine.enter = {fmt::format("job{}", job),
                     terms_[job],
                     times_[job],
                     {.machine_rank = {},
                      .host = fmt::format("node{}", i),
                      .address = fmt::format("10.0.{}.{}", i / 256, i % 256),
                      .store_port = 1,
                      .local_world_size = 1 + static_cast<int>(draw(2))}};
    if (terms_[job].ranks_are_given || happens(8)) {
      machine.enter.machine.machine_rank = static_cast<int>(i / num_jobs);
    }
    plan(machine, happens(2) ? 0ms : up_to(20s), &Simulation::start);
  }
}

void Simulation::run() {
  meddle();
  run_for(30s + up_to(300s));
  has_faults_ = false;
  resume();
  calm_from_ = now_ + 2min;  // the effects of all faults have been detected by then
  note("no more faults");
  Milliseconds longest = 0ms;
  for (const JobTimes& times : times_) {
    longest = std::max(longest, times.join + times.last_call + times.settle + times.heartbeat);
  }
  run_for(3 * longest);
  check_quiet();
  workers_succeed_ = true;
  note("all workers succeed");
  for (Machine& machine : machines_) {
    if (machine.state == State::running) {
      plan(machine, up_to(5s), &Simulation::succeed);
    }
  }
  run_for(2 * longest + 60s);
  check_over();
}

Simulation::Milliseconds Simulation::up_to(Milliseconds most) {
  return Milliseconds(draw(static_cast<std::uint64_t>(most.count()) + 1));
}

/// Mostly short, sometimes long, so that messages of one connection overtake those of another.
Simulation::Milliseconds Simulation::latency() {
  return has_faults_ && happens(10) ? up_to(slowest_) : up_to(5ms);
}

void Simulation::after(Milliseconds delay, std::function<void()> happen) {
  events_.push({now_ + delay, chance_(), std::move(happen)});
}

void Simulation::run_for(Milliseconds time) {
  const Time end = now_ + time;
  while (!events_.empty() && events_.top().at <= end) {
    const auto happen = events_.top().happen;
    now_ = events_.top().at;
    events_.pop();
    happen();
  }
  now_ = std::max(now_, end);
}

void Simulation::note(const std::string& what) {
  if (keeps_log_) {
    log_.push_back(fmt::format(
        "{:10.3f} {}", std::chrono::duration<double>(now_.time_since_epoch()).count(), what));
  }
}

void Simulation::violated(const std::string& law) const {
  throw Violation(fmt::format("after {} events: {}", num_events_, law));
}

// The server and the network.

/// Calls Jobs. The simulated agents are correct, so an Error(protocol) is a violation.
template <typename Call>
void Simulation::on_server(Call call) {
  if (is_down_) {
    return;
  }
  Outbox out;
  ++num_events_;
  try {
    call(out);
  } catch (const std::exception& error) {
    violated(std::string("the server refuses a message of a correct agent: ") + error.what());
  }
  post(out);
  set_timer();
}

void Simulation::post(const Outbox& out) {
  check(out);
  if (!recovers_) {
    return deliver(out);
  }
  held_.push_back(out);
  if (!std::exchange(is_flush_planned_, true)) {
    after(happens(4) ? up_to(20ms) : 0ms, [this, life = life_] { flush(life); });
  }
}

void Simulation::flush(std::uint64_t life) {
  if (life != life_) {
    return;
  }
  is_flush_planned_ = false;
  if (written_at_cut_ && is_fenced_) {
    return;
  }
  if (written_at_cut_) {
    for (const Outbox& out : std::exchange(held_, {})) {
      deliver(out);
    }
    return;
  }
  newly_gone_.clear();
  drains_ = std::exchange(drain_asked_, {}).value_or(drains_);
  flushed_.insert(flushed_.end(), unflushed_.begin(), unflushed_.end());
  unflushed_.clear();
  for (const Outbox& out : std::exchange(held_, {})) {
    deliver(out);
  }
}

void Simulation::record() {
  jobs_->record_with([this](Jobs::Change change, std::string_view first, std::string_view second) {
    unflushed_.push_back({change, std::string(first), std::string(second)});
  });
}

/// An administrator's command.
void Simulation::drain(bool is_draining) {
  note(is_draining ? "an administrator drains the server" : "an administrator resumes");
  if (recovers_) {
    drain_asked_ = is_draining;
  } else {
    drains_ = is_draining;
  }
  on_server([&](Outbox& /*out*/) { jobs_->drain(is_draining); });
}

/// Resumes, as soon as the server can.
void Simulation::resume() {
  if (is_down_ || drain_asked_) {
    return after(1s, [this] { resume(); });
  }
  if (jobs_->is_draining()) {
    drain(false);
  }
}

/// The server is cut off from its log, but not from its agents, until another one takes over.
void Simulation::cut_off() {
  note("the server is cut off from its log");
  written_at_cut_ = unflushed_.size();
  after(up_to(8s), [this, life = life_] {
    if (life == life_) {
      ++num_takeovers_;
      crash();
    }
  });
}

/// The server is killed. What it has sent arrives, or is lost with its machine.
void Simulation::crash() {
  const std::size_t most = std::exchange(written_at_cut_, {}).value_or(unflushed_.size());
  const std::size_t kept = happens(3) ? most : draw(most + 1);
  note(fmt::format("the server is killed; {} of {} unflushed events are on the disk", kept,
                   unflushed_.size()));
  ++num_crashes_;
  ++life_;
  is_down_ = true;
  is_flush_planned_ = false;
  timer_at_ = Time::max();
  const bool is_whole = kept == unflushed_.size();
  flushed_.insert(flushed_.end(), unflushed_.begin(),
                  unflushed_.begin() + static_cast<std::ptrdiff_t>(kept));
  unflushed_.clear();
  held_.clear();
  for (auto& [id, link] : links_) {
    link.to_server.clear();
    link.server_has_closed = true;
    link.to_agent.push_back(nullptr);
    after(latency(), [this, id = id] { arrive_at_agent(id); });
  }
  for (const auto& [id, owner] : owners_) {
    const Machine& machine = machines_[static_cast<std::size_t>(owner.first)];
    Seat& seat = seats_[owner.second];
    if (seat.connection == id) {
      seat.is_taken =
          machine.link == id && (machine.state == State::running || machine.state == State::ending);
    }
  }
  for (const std::uint64_t number : std::exchange(newly_gone_, {})) {
    seats_[number] = {.connection = seats_[number].connection,
                      .job = seats_[number].job};  // the log may not have its loss
  }
  // The jobs that result from the log are those of the killed server.
  auto again = jobs_of_log();
  const auto state_of = [](const Jobs& jobs) {
    std::vector<Entry> all;
    jobs.save([&](Jobs::Change change, std::string_view first, std::string_view second) {
      // A job without the time of the last event.
      const std::size_t ignored = change == Jobs::Change::job ? 16 : 0;
      all.push_back(
          {change, std::string(first.substr(0, first.size() - ignored)), std::string(second)});
    });
    return all;
  };
  if (is_whole && state_of(*again) != state_of(*jobs_)) {
    violated("the jobs of the log differ from those of the server");
  }
  if (!drain_asked_ && again->is_draining() != drains_) {
    violated("the server has forgotten an administrator's command");
  }
  drains_ = again->is_draining();
  drain_asked_.reset();
  jobs_ = std::move(again);
  after(happens(2) ? up_to(30s) : up_to(300ms), [this] { restart(); });
}

std::unique_ptr<Jobs> Simulation::jobs_of_log() const {
  auto jobs = std::make_unique<Jobs>(true);
  try {
    for (const Entry& entry : flushed_) {
      jobs->repeat(entry.change, entry.first, entry.second);
    }
  } catch (const std::exception& error) {
    violated(std::string("an event of the log does not fit: ") + error.what());
  }
  return jobs;
}

void Simulation::restart() {
  note("the server is started again");
  if (happens(3)) {  // the log is rewritten
    flushed_.clear();
    jobs_->save([&](Jobs::Change change, std::string_view first, std::string_view second) {
      flushed_.push_back({change, std::string(first), std::string(second)});
    });
  }
  jobs_ = jobs_of_log();
  record();
  shift_ = jobs_->last_event() - now_;
  is_down_ = false;
  jobs_->recover(server_time());
  set_timer();
}

void Simulation::set_timer() {
  Time due = jobs_->next_deadline();
  due = due == Time::max() ? due : due - shift_;
  if (due == timer_at_ || due == Time::max()) {
    return;
  }
  timer_at_ = due;
  const auto delay = std::chrono::ceil<Milliseconds>(std::max(due, now_) - now_);
  after(delay, [this, due, life = life_] {
    if (timer_at_ != due || life != life_) {
      return;  // the timer was set again
    }
    timer_at_ = Time::max();
    if (now_ < server_stalled_until_) {
      return after(std::chrono::ceil<Milliseconds>(server_stalled_until_ - now_),
                   [this] { on_server([this](Outbox& out) { jobs_->pass(server_time(), out); }); });
    }
    on_server([this](Outbox& out) { jobs_->pass(server_time(), out); });
  });
}

void Simulation::arrive_at_server(AgentId id) {
  const auto found = links_.find(id);
  if (found == links_.end()) {
    return;
  }
  if (now_ < server_stalled_until_) {
    return after(std::chrono::ceil<Milliseconds>(server_stalled_until_ - now_),
                 [this, id] { arrive_at_server(id); });
  }
  Link& link = found->second;
  if (link.to_server.empty()) {
    return;  // the server was killed
  }
  const auto message = std::move(link.to_server.front());
  link.to_server.pop_front();
  if (link.is_cut || (link.server_has_closed && message)) {
    return;
  }
  if (!message) {
    const bool is_known = link.life == life_ && !link.is_away && !link.server_has_closed;
    links_.erase(found);
    if (recovers_ && !is_known) {
      return;
    }
    note(fmt::format("server: agent {} has disconnected", id));
    if (!recovers_ || seat_of(id).connection == id) {
      mark_gone(id);
    }
    return on_server(
        [&](Outbox& out) { jobs_->lose(id, "its connection has ended", server_time(), out); });
  }
  if (!std::holds_alternative<Beat>(*message)) {
    note(fmt::format("server: agent {} sends {}", id, kAgentWords.at(message->index())));
  }
  link.is_away = link.is_away || std::holds_alternative<Away>(*message);
  Seat& seat = seat_of(id);
  if (const auto* enter = std::get_if<Enter>(&*message); recovers_ && enter != nullptr) {
    seat.is_gone = false;
    seat.is_taken = seat.is_taken && enter->round;
    seat.connection = id;
  } else if (recovers_ && seat.connection != id) {
    return;  // the server closes a connection that another one has replaced
  }
  if (seat.is_taken && std::holds_alternative<Report>(*message)) {
    seat.is_taken = false;
    rounds_[machines_[static_cast<std::size_t>(link.machine)].enter.run_id].has_report = true;
  }
  if (std::holds_alternative<Leave>(*message)) {
    mark_gone(id);
  }
  receive(id, *message);
}

/// Passes a message to the server. While it drains, it refuses an agent of a new job.
void Simulation::receive(AgentId id, const AgentMessage& message) {
  const bool must_refuse = drains_ && !drain_asked_;
  const std::size_t num_jobs = jobs_->size();
  on_server([&](Outbox& out) {
    if (std::holds_alternative<Enter>(message)) {
      seat_of(id).job = job_of_[id] = {};
    }
    try {
      jobs_->receive(id, message, server_time(), out);
      if (std::holds_alternative<Enter>(message)) {
        seat_of(id).job = job_of_[id] = jobs_->job_of(id);
      }
    } catch (const Error& error) {
      if (error.code() != Errc::not_supported || !jobs_->is_draining()) {
        throw;
      }
      ++num_refused_;
      auto frame = std::make_shared<std::string>();
      encode(Dropped{Dropped::Why::config, error.what()}, *frame);
      out.push_back({.to = id, .frame = std::move(frame), .is_last = true});
    }
  });
  if (must_refuse && jobs_->size() > num_jobs) {
    violated("a server that drains has accepted a new job");
  }
}

void Simulation::check(const Outbox& out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    check_round(out, i);
    if (out[i].is_last) {
      if (concerns_seat(out[i].to)) {
        mark_gone(out[i].to);
      }
      if (const auto found = links_.find(out[i].to); found != links_.end()) {
        found->second.server_has_closed = true;
      }
    }
  }
}

void Simulation::deliver(const Outbox& out) {
  for (const OutgoingMessage& outgoing : out) {
    const auto found = links_.find(outgoing.to);
    if (found == links_.end()) {
      continue;
    }
    found->second.to_agent.push_back(outgoing.frame);
    after(latency(), [this, id = outgoing.to] { arrive_at_agent(id); });
    if (outgoing.is_last) {
      found->second.to_agent.push_back(nullptr);
      after(latency(), [this, id = outgoing.to] { arrive_at_agent(id); });
    }
  }
}

/// Checks the Formed messages of a round, which are sent in order of machine rank.
void Simulation::check_round(const Outbox& out, std::size_t first) {
  const auto message_at = [&](std::size_t i) {
    std::string_view bytes = *out[i].frame;
    return *take_server_message(bytes);
  };
  const ServerMessage message = message_at(first);
  if (!std::holds_alternative<Beat>(message) && !std::holds_alternative<Waiting>(message)) {
    note(fmt::format("server: sends agent {} {}", out[first].to, kServerWords.at(message.index())));
  }
  check_seat(out[first].to, message);
  const auto* formed = std::get_if<Formed>(&message);
  if (formed == nullptr || formed->round.machine_rank != 0) {
    return;
  }
  const Round& round = formed->round;
  const Machine& head = machine_of(out[first].to);
  if (first + 1 == out.size() || !std::holds_alternative<Formed>(message_at(first + 1))) {
    if (recovers_ && round.num_machines() > 1) {
      return;  // sent again; the agent checks it
    }
  }
  ++num_rounds_;
  const Terms& terms = head.enter.terms;
  const int least = terms.ranks_are_given ? terms.num_machines : terms.min_machines;
  if (round.num_machines() < least || round.num_machines() > terms.num_machines) {
    violated(fmt::format("a round of {} machines", round.num_machines()));
  }
  Gathered& last = rounds_[head.enter.run_id];
  for (const AgentId id : last.agents) {
    if (seat_of(id).is_taken && !seat_of(id).is_gone) {
      violated(fmt::format("a round is formed before agent {} has reported", id));
    }
  }
  if (!recovers_ && round.round != 0 && round.round != last.round + 1) {
    violated(fmt::format("round {} follows round {}", round.round, last.round));
  }
  if (round.restart_count > terms.max_restarts) {
    violated("more restarts than max_restarts");
  }
  const Gathered before = std::exchange(last, {.round = round.round});
  int num_kept = 0;
  bool gives_ranks = recovers_;  // the ids of agents change
  for (int rank = 0; rank < round.num_machines(); ++rank) {
    const std::size_t at = first + static_cast<std::size_t>(rank);
    if (at >= out.size()) {
      violated("a machine of a round got no Formed message");
    }
    const ServerMessage other_message = message_at(at);
    const auto* other = std::get_if<Formed>(&other_message);
    if (other == nullptr || other->round != as_seen_by(rank, round)) {
      violated("machines of a round received different rounds, or ranks are no permutation");
    }
    const AgentId id = out[at].to;
    const Machine& machine = machine_of(id);
    if (machine.enter.run_id != head.enter.run_id ||
        machine.enter.machine.local_world_size !=
            round.local_world_sizes[static_cast<std::size_t>(rank)]) {
      violated("a round has the data of another machine");
    }
    if (terms.ranks_are_given && machine.enter.machine.machine_rank != rank) {
      violated("a machine did not get the rank that it brought");
    }
    Seat& seat = seat_of(id);
    if (seat.is_taken || seat.is_gone) {
      violated(fmt::format("agent {} is in two rounds, or has disconnected", id));
    }
    seat.is_taken = true;
    last.agents.push_back(id);
    num_kept += std::ranges::count(before.agents, id) > 0 ? 1 : 0;
    gives_ranks = gives_ranks || machine.enter.machine.machine_rank.has_value();
  }
  if (!recovers_ && round.num_kept != num_kept) {
    violated(fmt::format("{} machines of the last round are in this one, not {}", num_kept,
                         round.num_kept));
  }
  // Machines of the last round keep their order, and in a round of as many machines or more their
  // ranks.
  std::ptrdiff_t least_before = 0;
  for (std::size_t rank = 0; rank < last.agents.size() && !gives_ranks; ++rank) {
    const auto was = std::ranges::find(before.agents, last.agents[rank]);
    const std::ptrdiff_t rank_before = was - before.agents.begin();
    if (was == before.agents.end()) {
      continue;
    }
    if (before.agents.size() <= last.agents.size() &&
        rank_before != static_cast<std::ptrdiff_t>(rank)) {
      violated("a machine has lost its rank although there are as many machines");
    }
    if (rank_before < least_before) {
      violated("machines have changed their order");
    }
    least_before = rank_before;
  }
}

void Simulation::check_seat(AgentId id, const ServerMessage& message) {
  if (!concerns_seat(id)) {
    return;
  }
  Seat& seat = seat_of(id);
  if (seat.is_gone) {
    violated(fmt::format("agent {} has disconnected and is sent {}", id,
                         kServerWords.at(message.index())));
  }
  const auto* settled = std::get_if<Settled>(&message);
  if (settled != nullptr && settled->round_result.next == RoundResult::Next::finished) {
    seat.is_taken = false;
  } else if (settled != nullptr && seat.is_taken) {
    violated(fmt::format("agent {} is told to rejoin and has not reported", id));
  }
}

void Simulation::arrive_at_agent(AgentId id) {
  const auto found = links_.find(id);
  if (found == links_.end()) {
    return;
  }
  Link& link = found->second;
  Machine& machine = machines_[static_cast<std::size_t>(link.machine)];
  if (now_ < machine.frozen_until) {
    return after(std::chrono::ceil<Milliseconds>(machine.frozen_until - now_),
                 [this, id] { arrive_at_agent(id); });
  }
  const auto frame = std::move(link.to_agent.front());
  link.to_agent.pop_front();
  if (link.is_cut || machine.link != id) {
    return;
  }
  if (!frame) {
    return lose_server(machine);
  }
  machine.last_heard = now_;
  std::string_view bytes = *frame;
  hear(machine, *take_server_message(bytes));
}

// Properties that hold when nothing happens any more.

/// Without faults every machine is in a round, has been told why not, or waits for a place.
void Simulation::check_quiet() {
  for (std::size_t job = 0; job < terms_.size(); ++job) {
    std::map<State, int> count;
    int succeeded = 0;
    for (const Machine& machine : machines_) {
      if (machine.job == static_cast<int>(job)) {
        ++count[machine.state];
        succeeded += machine.state == State::reported && machine.succeeded ? 1 : 0;
      }
    }
    const int in_round = count[State::running] + succeeded;
    const bool waits_for_place =
        count[State::running] > 0 &&
        (in_round >= terms_[job].num_machines || rounds_[fmt::format("job{}", job)].has_report);
    if ((count[State::waiting] > 0 && !waits_for_place) || count[State::ending] > 0 ||
        count[State::alone] > 0 || count[State::between] > 0 ||
        count[State::reported] != succeeded || (succeeded > 0 && count[State::running] == 0)) {
      violated(fmt::format("job{} hangs: {} wait, {} run, {} end, {} have reported, {} are between",
                           job, count[State::waiting], count[State::running], count[State::ending],
                           count[State::reported], count[State::between]));
    }
  }
}

void Simulation::check_over() {
  for (const Machine& machine : machines_) {
    if (machine.state != State::off && machine.state != State::finished) {
      violated(fmt::format("{} is {} at the end of the simulation", machine.enter.machine.host,
                           name_of(machine.state)));
    }
  }
  if (jobs_->size() != 0 || jobs_->next_deadline() != Time::max()) {
    violated(fmt::format("{} jobs are not deleted", jobs_->size()));
  }
}

}  // namespace acc::rendezvous::rounds::test
