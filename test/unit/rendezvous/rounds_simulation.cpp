// SPDX-License-Identifier: Apache-2.0
#include "rounds_simulation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace acc::rendezvous::rounds::test {
namespace {

using namespace std::chrono_literals;

constexpr std::array kAgentWords{"Enter", "Rejoin", "Beat", "End", "Insist", "Report", "Leave"};
constexpr std::array kServerWords{"Welcome", "Beat",     "Waiting", "Formed",
                                  "Ends",    "Insisted", "Settled", "Dropped"};

}  // namespace

Simulation::Simulation(std::uint64_t seed, int num_machines)
    : chance_(seed), machines_(static_cast<std::size_t>(num_machines)) {
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

void Simulation::set_timer() {
  const Time due = jobs_.next_deadline();
  if (due == timer_at_ || due == Time::max()) {
    return;
  }
  timer_at_ = due;
  const auto delay = std::chrono::ceil<Milliseconds>(std::max(due, now_) - now_);
  after(delay, [this, due] {
    if (timer_at_ != due) {
      return;  // the timer was set again
    }
    timer_at_ = Time::max();
    if (now_ < server_stalled_until_) {
      return after(std::chrono::ceil<Milliseconds>(server_stalled_until_ - now_),
                   [this] { on_server([this](Outbox& out) { jobs_.pass(now_, out); }); });
    }
    on_server([this](Outbox& out) { jobs_.pass(now_, out); });
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
  const auto message = std::move(link.to_server.front());
  link.to_server.pop_front();
  if (link.is_cut || (link.server_has_closed && message)) {
    return;
  }
  if (!message) {
    note(fmt::format("server: agent {} has disconnected", id));
    seats_[id].is_gone = true;
    links_.erase(found);
    return on_server([&](Outbox& out) { jobs_.lose(id, "its connection has ended", now_, out); });
  }
  if (!std::holds_alternative<Beat>(*message)) {
    note(fmt::format("server: agent {} sends {}", id, kAgentWords.at(message->index())));
  }
  Seat& seat = seats_[id];
  if (seat.is_taken && std::holds_alternative<Report>(*message)) {
    seat.is_taken = false;
    rounds_[machines_[static_cast<std::size_t>(link.machine)].enter.run_id].has_report = true;
  }
  seat.is_gone = seat.is_gone || std::holds_alternative<Leave>(*message);
  on_server([&](Outbox& out) { jobs_.receive(id, *message, now_, out); });
}

void Simulation::post(const Outbox& out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    const OutgoingMessage& outgoing = out[i];
    check_round(out, i);
    const auto found = links_.find(outgoing.to);
    if (found == links_.end()) {
      continue;
    }
    found->second.to_agent.push_back(outgoing.frame);
    after(latency(), [this, id = outgoing.to] { arrive_at_agent(id); });
    if (outgoing.is_last) {
      seats_[outgoing.to].is_gone = true;
      found->second.server_has_closed = true;
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
  ++num_rounds_;
  const Round& round = formed->round;
  const Machine& head = machines_[static_cast<std::size_t>(links_.at(out[first].to).machine)];
  const Terms& terms = head.enter.terms;
  const int least = terms.ranks_are_given ? terms.num_machines : terms.min_machines;
  if (round.num_machines() < least || round.num_machines() > terms.num_machines) {
    violated(fmt::format("a round of {} machines", round.num_machines()));
  }
  Gathered& last = rounds_[head.enter.run_id];
  for (const AgentId id : last.agents) {
    if (seats_[id].is_taken && !seats_[id].is_gone) {
      violated(fmt::format("a round is formed before agent {} has reported", id));
    }
  }
  if (round.round != 0 && round.round != last.round + 1) {
    violated(fmt::format("round {} follows round {}", round.round, last.round));
  }
  if (round.restart_count > terms.max_restarts) {
    violated("more restarts than max_restarts");
  }
  last = {.round = round.round};
  for (int rank = 0; rank < round.num_machines(); ++rank) {
    const std::size_t at = first + static_cast<std::size_t>(rank);
    if (at >= out.size()) {
      violated("a machine of a round got no Formed message");
    }
    const ServerMessage other_message = message_at(at);
    const auto* other = std::get_if<Formed>(&other_message);
    Round expected = round;
    expected.machine_rank = rank;
    if (other == nullptr || other->round != expected) {
      violated("machines of a round received different rounds, or ranks are no permutation");
    }
    const AgentId id = out[at].to;
    const Link& link = links_.at(id);
    const Machine& machine = machines_[static_cast<std::size_t>(link.machine)];
    if (machine.enter.run_id != head.enter.run_id ||
        machine.enter.machine.local_world_size !=
            round.local_world_sizes[static_cast<std::size_t>(rank)]) {
      violated("a round has the data of another machine");
    }
    if (terms.ranks_are_given && machine.enter.machine.machine_rank != rank) {
      violated("a machine did not get the rank that it brought");
    }
    Seat& seat = seats_[id];
    if (seat.is_taken || seat.is_gone) {
      violated(fmt::format("agent {} is in two rounds, or has disconnected", id));
    }
    seat.is_taken = true;
    last.agents.push_back(id);
  }
}

void Simulation::check_seat(AgentId id, const ServerMessage& message) {
  Seat& seat = seats_[id];
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
  if (jobs_.size() != 0 || jobs_.next_deadline() != Time::max()) {
    violated(fmt::format("{} jobs are not deleted", jobs_.size()));
  }
}

}  // namespace acc::rendezvous::rounds::test
