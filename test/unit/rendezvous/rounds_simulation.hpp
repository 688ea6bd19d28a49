// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rounds/jobs.hpp"

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <queue>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace acc::rendezvous::rounds::test {

/// A property that does not hold in a simulation.
struct Violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Returns the round as the machine of this rank sees it, in a job in which all have the same role.
inline Round as_seen_by(int machine_rank, Round round) {
  const auto sizes = round.local_world_sizes.begin();
  round.machine_rank = machine_rank;
  round.first_role_rank = std::accumulate(sizes, sizes + machine_rank, 0);
  round.role_world_size = std::accumulate(sizes, round.local_world_sizes.end(), 0);
  return round;
}

/// Simulates `Jobs`, the object that the daemon runs, with machines that start, crash, hang, lose
/// their network, fail, succeed and are stopped. Every message has a random latency. The seed
/// determines everything that happens. Throws Violation.
///
/// With `recovers`, the server is also killed at any event, and restarted with its log and any part
/// of what it had not flushed. Messages leave the server when their events are flushed. It is also
/// cut off from its log at any event: it goes on for a while, but its writes are fenced off, until
/// another server takes over with the log and any part of the write that was under way.
///
/// An administrator drains the server, and resumes.
class Simulation {
 public:
  using Milliseconds = JobTimes::Milliseconds;
  enum class Mode {
    forgets,  ///< the server is never killed
    recovers,
    unfenced,  ///< a mistake: as `recovers`, but a server that is cut off sends its messages
  };

  Simulation(std::uint64_t seed, int num_machines, Mode mode = Mode::forgets);
  /// Runs with faults for a while, then without until nothing happens any more; then all workers
  /// succeed.
  void run();

  void keep_log() { keeps_log_ = true; }
  [[nodiscard]] const std::vector<std::string>& log() const { return log_; }
  /// Number of events of the server: messages, ends of connections, deadlines.
  [[nodiscard]] std::uint64_t num_events() const { return num_events_; }
  [[nodiscard]] std::uint64_t num_rounds() const { return num_rounds_; }
  [[nodiscard]] std::uint64_t num_crashes() const { return num_crashes_; }
  [[nodiscard]] std::uint64_t num_takeovers() const { return num_takeovers_; }
  /// Number of new jobs that were refused because the server drained.
  [[nodiscard]] std::uint64_t num_refused() const { return num_refused_; }

 private:
  enum class State {
    off,       ///< not started, or crashed
    waiting,   ///< has asked for a place
    running,   ///< its workers run
    ending,    ///< its workers are being stopped
    reported,  ///< waits for the round result
    between,   ///< will rejoin
    alone,     ///< its workers are being stopped, its connection is lost
    finished,  ///< was told that the job is over
  };
  struct Machine {
    int job = 0;
    Enter enter;
    State state = State::off;
    /// Number of changes of state: steps that were planned before the last change are void.
    std::uint64_t turn = 0;
    AgentId link = 0;
    Milliseconds silence_limit{};
    Time last_heard{};
    Time frozen_until{};
    bool succeeded = false;
    bool last_end = false;  ///< was told that no round follows
    std::optional<Round> round{};
    std::optional<AttemptEnd> own_end{};    ///< it has ended the attempt
    std::optional<AttemptEnd> known_end{};  ///< the server has
  };
  /// A connection. Messages in transit arrive in order; the empty message is the end.
  struct Link {
    int machine = 0;
    std::uint64_t life = 0;  ///< number of the server process
    bool is_away = false;    ///< the server has received Away
    bool is_cut = false;     ///< nothing arrives any more, and neither side knows
    bool server_has_closed = false;
    std::deque<std::optional<AgentMessage>> to_server{};
    std::deque<std::shared_ptr<const std::string>> to_agent{};
  };
  /// State of an agent that the server must respect.
  struct Seat {
    bool is_taken = false;  ///< in a round for which it has not reported
    bool is_gone = false;
    AgentId connection = 0;              ///< the one that entered last
    std::optional<std::uint64_t> job{};  ///< number of the job that it entered
  };
  struct Gathered {
    int round = -1;
    bool has_report = false;
    std::vector<AgentId> agents{};
  };
  struct Event {
    Time at;
    std::uint64_t order;
    std::function<void()> happen;
    bool operator<(const Event& other) const {
      return std::pair(at, order) > std::pair(other.at, other.order);
    }
  };

  // Random numbers.
  std::uint64_t draw(std::uint64_t below) { return chance_() % below; }
  bool happens(int in) { return draw(static_cast<std::uint64_t>(in)) == 0; }
  /// For faults that end a round: per machine less likely in a larger simulation, so that rounds
  /// end equally often.
  bool happens_to_one_of(int in) {
    return happens(in * std::max(1, static_cast<int>(machines_.size()) / 8));
  }
  Milliseconds up_to(Milliseconds most);
  Milliseconds latency();

  // Time.
  void after(Milliseconds delay, std::function<void()> happen);
  void run_for(Milliseconds time);
  void note(const std::string& what);
  [[noreturn]] void violated(const std::string& law) const;

  // The server and the network.
  void found_jobs();
  void arrive_at_server(AgentId id);
  void arrive_at_agent(AgentId id);
  void post(const Outbox& out);
  void check(const Outbox& out);
  void deliver(const Outbox& out);
  Seat& seat_of(AgentId id) { return seats_[owners_.at(id).second]; }
  /// False for a connection of a job that is over, if its agent is in the next job on another one.
  bool concerns_seat(AgentId id) { return !recovers_ || seat_of(id).job == job_of_[id]; }
  [[nodiscard]] Machine& machine_of(AgentId id) {
    return machines_[static_cast<std::size_t>(owners_.at(id).first)];
  }
  [[nodiscard]] Time server_time() const { return now_ + shift_; }
  void mark_gone(AgentId id) {
    seat_of(id).is_gone = true;
    newly_gone_.push_back(owners_.at(id).second);
  }
  void record();
  void receive(AgentId id, const AgentMessage& message);
  void drain(bool is_draining);
  void resume();
  void flush(std::uint64_t life);
  void cut_off();
  void crash();
  void restart();
  [[nodiscard]] std::unique_ptr<Jobs> jobs_of_log() const;
  void set_timer();
  void check_round(const Outbox& out, std::size_t first);
  void check_seat(AgentId id, const ServerMessage& message);
  template <typename Call>
  void on_server(Call call);

  // A machine.
  static std::string_view name_of(State state);
  void change(Machine& machine, State state);
  void plan(Machine& machine, Milliseconds delay, void (Simulation::*step)(Machine&));
  void start(Machine& machine);
  AgentId connect(Machine& machine);
  void come_back(Machine& machine, int pid);
  [[nodiscard]] static bool is_in_round(const Machine& machine) {
    return machine.state == State::running || machine.state == State::ending ||
           machine.state == State::reported;
  }
  void watch(Machine& machine, AgentId link, Milliseconds limit);
  void say(Machine& machine, AgentMessage message);
  void hear(Machine& machine, ServerMessage message);
  void hear_formed(Machine& machine, const Round& round);
  void hear_ends(Machine& machine, const AttemptEnd& end);
  void hear_settled(Machine& machine, const RoundResult& round_result);
  void lose_server(Machine& machine);
  void hang_up(Machine& machine);
  void hang_up_and_restart(Machine& machine);
  void start_anew(Machine& machine);
  void fail(Machine& machine);
  void succeed(Machine& machine);
  void end_workers(Machine& machine);
  void report(Machine& machine);
  void rejoin(Machine& machine);

  // Faults.
  void meddle();
  void disturb(Machine& machine);
  void stop(Machine& machine);
  void check_quiet();
  void check_over();

  std::mt19937_64 chance_;
  Time now_ = Time() + std::chrono::hours(1);
  Time server_stalled_until_{};
  Time timer_at_ = Time::max();
  std::priority_queue<Event> events_;
  bool recovers_;
  bool is_fenced_;
  std::unique_ptr<Jobs> jobs_;
  struct Entry {
    Jobs::Change change;
    std::string first;
    std::string second;
    bool operator==(const Entry&) const = default;
  };
  std::vector<Entry> flushed_;  ///< the server's log
  std::vector<Entry> unflushed_;
  std::vector<Outbox> held_;               ///< messages that wait until unflushed_ is flushed
  std::vector<std::uint64_t> newly_gone_;  ///< seats that are gone since the last flush
  bool is_flush_planned_ = false;
  bool is_down_ = false;
  std::optional<std::size_t>
      written_at_cut_{};  ///< cut off: part of unflushed_ that was being written
  std::uint64_t life_ = 0;
  Time::duration shift_{};  ///< time of the server less now_
  std::uint64_t num_crashes_ = 0;
  std::uint64_t num_takeovers_ = 0;
  bool drains_ = false;                ///< the last command that was acknowledged
  std::optional<bool> drain_asked_{};  ///< a command that is not acknowledged
  std::uint64_t num_refused_ = 0;
  std::vector<Terms> terms_;
  std::vector<JobTimes> times_;
  std::vector<Machine> machines_;
  std::unordered_map<AgentId, Link> links_;
  /// Machine and seat of each connection. A seat belongs to an agent, whose connections share it.
  std::unordered_map<AgentId, std::pair<int, std::uint64_t>> owners_;
  std::unordered_map<std::uint64_t, Seat> seats_;
  std::unordered_map<AgentId, std::optional<std::uint64_t>> job_of_;  ///< as Seat::job
  std::map<std::string, Gathered> rounds_;
  AgentId next_id_ = 1;
  Milliseconds slowest_{};
  Milliseconds pause_between_faults_{};
  bool has_faults_ = true;
  Time calm_from_ = Time::max();
  bool workers_succeed_ = false;
  bool keeps_log_ = false;
  std::vector<std::string> log_;
  std::uint64_t num_events_ = 0;
  std::uint64_t num_rounds_ = 0;
};

}  // namespace acc::rendezvous::rounds::test
