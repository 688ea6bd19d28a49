#pragma once

#include "rounds/agents.hpp"
#include "rounds/attempt.hpp"
#include "rounds/messages.hpp"
#include "rounds/rank_set.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace acc::rendezvous::rounds {

/// One message to one agent, as an encoded frame. Several agents may share the frame.
struct OutgoingMessage {
  AgentId to = 0;
  std::shared_ptr<const std::string> frame;
  /// True: the server closes the connection after sending it. The membership has already removed
  /// the agent.
  bool is_last = false;
  /// True: the agent counts as dead, so the server does not wait until it has read this message.
  bool is_lost = false;
};

/// Messages that the server must send, in this order.
using Outbox = std::vector<OutgoingMessage>;

/// The agents of one job and the rounds that they form (docs/protocol.md), as a pure state machine:
/// events and the time come in, messages go out. It reads no clock and uses no socket, so a test
/// can run any order of events at any speed.
///
/// The job goes through these phases:
/// - gathering: agents wait. A round is formed when needed() machines are present and, if fewer
///   than num_machines are, JobTimes::last_call has passed.
/// - running: the workers of a round run.
/// - ending: the attempt has ended; machines stop their workers and report, within
///   JobTimes::settle. When all have reported or are lost, the job returns to gathering (restart)
///   or is over.
/// - over: the job has ended. An elastic job refuses late machines for JobTimes::close.
/// - refused: machines disagreed before the first round. All of them, also those that connect
///   later, are sent the reason. When all have been, or after JobTimes::close, the job is over.
///
/// Invariants: rounds do not overlap; all machines of a round receive the same Round except for
/// their rank; a connected agent is in a round, waits for a place, or has been told why not.
///
/// Time during which the process was suspended does not count: see `begin`. A server that was
/// stopped for an hour does not drop its agents as silent.
class Membership {
 public:
  Membership(std::string run_id, Terms terms, JobTimes times);

  /// Sets another job of this server for the next event. A machine that waits in vain may belong to
  /// that job: messages mention it, and see is_misled.
  void look_beside(const Membership* other) { beside_ = other; }

  /// Processes a message. The first one of an agent is Enter; it has passed `check`. Throws
  /// Error(protocol), with nothing changed, for a message that does not fit the agent's state,
  /// unless it can have crossed a message of the server.
  void receive(AgentId id, AgentMessage message, Time now, Outbox& out);
  /// The agent's connection has ended. `why` appears in messages on the other machines.
  void lose(AgentId id, const std::string& why, Time now, Outbox& out);
  /// Does everything that is due at `now`.
  void pass(Time now, Outbox& out);
  /// Time at which `pass` must be called; Time::max(): never.
  [[nodiscard]] Time next_deadline() const;

  /// True if the job is over and a new agent with its run id starts a new job, even though agents
  /// of this job may still be connected.
  [[nodiscard]] bool gives_way(Time now) const;
  /// Same as gives_way, and also true for a refused job if `enter` comes from a machine that was
  /// refused and has been started again (same host and rank, another process).
  [[nodiscard]] bool gives_way_to(const Enter& enter, Time now) const;
  /// True if the job is kept only to refuse late machines.
  [[nodiscard]] bool is_remembered() const {
    return (phase_ == Phase::over || phase_ == Phase::refused) && agents_.empty();
  }
  /// True in phase refused: machines that have not connected yet will be sent the reason.
  [[nodiscard]] bool is_refusing() const { return phase_ == Phase::refused; }
  /// True if the launcher of a connected machine of this job runs this server.
  [[nodiscard]] bool is_served_by_its_own() const { return server_.has_value(); }
  /// Estimated memory, in bytes.
  [[nodiscard]] std::size_t bytes() const;
  /// Estimated memory of a job that this agent would create, without the agent.
  static std::size_t bytes_to_found(const Enter& enter);
  /// True if the job can be deleted.
  [[nodiscard]] bool is_forgotten(Time now) const;

 private:
  using State = Agent::State;
  using Milliseconds = JobTimes::Milliseconds;
  /// A refused machine: host, machine rank, pid.
  using Refused = std::tuple<std::string, std::optional<int>, int>;
  enum class Phase : std::uint8_t { gathering, running, ending, over, refused };

  static std::size_t bytes_of(const Agreed& agreed);
  // Every public event is begin(), the event's effect, go_on().
  void begin(Time now, Outbox& out);
  void go_on();

  // Admission (membership_admission.cpp).
  void enter(AgentId id, Enter enter);
  /// True if the agent may join. Otherwise drops it or, if machines disagree, all agents of the
  /// job.
  bool admit(AgentId id, const Enter& enter);
  bool claim_rank(AgentId id, const Enter& enter);
  void answer(AgentId asking);
  void give_rank_back(const Agent& agent);
  void refuse_all(AgentId newcomer, const Enter& enter, const std::string& reason);
  void refuse(AgentId newcomer, const Machine& machine);
  void remember_refused(const Machine& machine);
  [[nodiscard]] std::size_t num_places_refused() const;
  [[nodiscard]] std::vector<int> ranks_here() const;
  [[nodiscard]] bool was_refused_as_another(const Machine& newcomer) const;
  void make_room_for(const Agent& newcomer);

  // Messages of a known agent, one overload per type.
  void hear(Agent& agent, Enter&& message);
  void hear(Agent& agent, Rejoin&& message);
  void hear(Agent& agent, Beat&& message);
  void hear(Agent& agent, End&& message);
  void hear(Agent& agent, ForceStop&& message);
  void hear(Agent& agent, Report&& message);
  void hear(Agent& agent, Leave&& message);

  // Rounds (membership_rounds.cpp).
  void gather();
  void form();
  void end_attempt(AttemptEnd end);
  /// Replaces the end while workers are being stopped: a more exact reason is known, or the restart
  /// is cancelled.
  void change_end(AttemptEnd end);
  void leave_alone(Agent& agent, AttemptEnd end);
  void dismiss(Agent& agent, AttemptEnd end);
  void settle();
  void settle_without_the_slow();
  void finish(RoundResult round_result);

  // Loss of agents and time limits.
  void remove(Agent& agent, const std::string& why);
  void lose_from_attempt(int rank, bool had_reported, const std::string& why);
  void look_at(Agent& agent);
  void look_later(Agent& agent);
  [[nodiscard]] Time limit_of(const Agent& agent) const;

  [[nodiscard]] bool is_elastic() const { return !terms_.ranks_are_given && terms_.is_elastic(); }
  [[nodiscard]] int needed() const;
  [[nodiscard]] int num_in_attempt() const;
  [[nodiscard]] bool may_restart() const { return restart_count_ < terms_.max_restarts; }
  [[nodiscard]] bool can_spare(const Agent& agent) const;
  [[nodiscard]] bool can_go_on() const;
  [[nodiscard]] AttemptEnd lost(int rank, const std::string& why) const;

  void send(AgentId id, const ServerMessage& message);
  void send_all(const std::vector<Agent*>& agents, const ServerMessage& message);
  void drop(Agent& agent, Dropped::Why why, const std::string& reason);
  void drop_stranger(AgentId id, Dropped::Why why, const std::string& reason);
  void tell_what_it_waits_for(Agent& agent);
  [[nodiscard]] std::string what_is_waited_for() const;
  [[nodiscard]] std::string what_is_beside() const;
  [[nodiscard]] bool is_misled() const;
  [[nodiscard]] std::string misled_reason() const;
  [[nodiscard]] std::string timeout_reason(const Agent& agent) const;

  std::string run_id_;
  Terms terms_;
  JobTimes times_;
  std::size_t founding_bytes_ = 0;  // memory of the terms and the founder
  std::optional<Machine> founder_;  // first machine of the job: terms_ and times_ are its
  std::optional<Machine> server_;   // machine whose launcher runs this server

  Agents agents_;
  Phase phase_ = Phase::gathering;
  bool has_formed_ = false;  // this server has formed a round of the job
  int next_round_ = 0;
  int restart_count_ = 0;

  // Phase gathering.
  std::map<int, AgentId> claims_;  // ranks_are_given: rank -> connected agent
  RankSet missing_;                // ranks_are_given: ranks whose machines have never connected
  bool is_short_ = false;          // fewer than needed() machines wait
  Time short_since_{};             // since when is_short_
  int most_waiting_ = 0;           // largest number of waiting machines since short_since_
  bool needs_last_call_ = true;    // false right after a round: its machines form the next at once
  std::optional<Time> last_call_;  // end of the wait for more machines

  // Phases running and ending.
  Attempt attempt_;
  std::optional<AttemptEnd> end_;
  bool uses_restart_ = false;      // the restart counts towards Terms::max_restarts
  bool is_force_stopped_ = false;  // the force stop was sent to all machines
  Time settle_by_{};               // limit of phase ending

  // Phases over and refused.
  Time over_since_{};
  bool refuses_late_ = false;  // phase over: late machines are refused for JobTimes::close

  // Phase refused.
  std::string refusal_;          // the reason that every machine is sent
  std::set<Refused> refused_;    // machines that were sent it
  std::set<int> refused_ranks_;  // their machine ranks; -1: none given
  std::size_t num_refused_ = 0;
  std::size_t refused_bytes_ = 0;
  int fewest_wanted_ = 0;  // the smallest number of machines that the disagreeing ones expect
  Time refuses_until_{};

  // The event that is being processed.
  Time now_{};                          // its time, less stalled_
  Outbox* out_ = nullptr;               // receives its messages
  const Membership* beside_ = nullptr;  // see look_beside

  // Suspension of this process: see `begin`.
  Time::duration stalled_{};  // total time for which it was suspended
  Time alive_since_{};        // silence of agents before this time does not count
};

}  // namespace acc::rendezvous::rounds
