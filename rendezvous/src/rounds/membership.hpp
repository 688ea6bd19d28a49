// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/job_news.hpp"
#include "rounds/agents.hpp"
#include "rounds/attempt.hpp"
#include "rounds/messages.hpp"
#include "rounds/rank_set.hpp"

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
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

/// The agent's connection has ended.
struct Lost {
  std::string why;
};
/// The heartbeat timeout of the agent has passed.
struct Silent {};
/// The join timeout of the agent has passed.
struct TimedOut {};
/// A time limit of the job has passed: last call, settling, or refusing.
struct LimitPassed {};
/// The server has been started again: no agent has a connection.
struct Recovered {};
/// The job is deleted.
struct Forgotten {};
/// Everything that changes a job. Heartbeats do not: which agents are silent is decided once, and
/// the decision is an event.
using Occurrence =
    std::variant<AgentMessage, Lost, Silent, TimedOut, LimitPassed, Recovered, Forgotten>;

/// An event of one job. A job is determined by its events: `Jobs::repeat` makes the same changes.
struct JobEvent {
  std::uint64_t job = 0;  ///< number of the job
  Time at{};              ///< time of the job, less `stalled`
  Time::duration stalled{};
  AgentId agent = 0;  ///< of AgentMessage, Lost, Silent, TimedOut
  Occurrence what{};
};

/// The phases of a job, each with the state that exists only in that phase. See Membership.
namespace phase {

struct Gathering {
  /// Fewer machines wait than a round needs.
  struct Shortage {
    Time since;
    int most_waiting = 0;  ///< largest number of waiting machines since then
  };
  /// Enough machines wait. Others may join until then.
  struct LastCall {
    Time until;
  };

  bool is_first = true;         ///< this server has formed no round of the job
  bool needs_last_call = true;  ///< false after a round: its machines form the next one at once
  /// monostate: enough machines wait, but some of the last round have not rejoined yet.
  std::variant<std::monostate, Shortage, LastCall> wait{};
};

/// The attempt has ended: all machines must stop their workers and report.
struct Ending {
  AttemptEnd end;
  bool uses_restart = false;  ///< the restart counts towards Terms::max_restarts
  Time settle_by;             ///< limit of the last report
};

struct InRound {
  Attempt attempt;
  Round round{};  ///< as machine 0 sees it
  std::optional<Ending> ending{};
  bool is_force_stopped = false;  ///< the force stop was sent to all machines

  [[nodiscard]] bool is_running() const { return !ending; }
};

struct Refused {
  /// Host, machine rank, pid.
  using Process = std::tuple<std::string, std::optional<int>, int>;

  std::string reason;  ///< sent to every machine
  Time since;
  int fewest_wanted = 0;       ///< smallest number of machines that the disagreeing ones expect
  std::set<Process> told{};    ///< processes of the machines that were sent the reason
  std::set<int> ranks_told{};  ///< their machine ranks; -1: none given
  std::size_t num_told = 0;    ///< counts a process again that connects again
  std::size_t told_bytes = 0;  ///< estimated memory of `told`

  void add(const Machine& machine);
  /// True if a machine of that host and rank was told whose launcher was another process.
  [[nodiscard]] bool has_told_another_process(const Machine& newcomer) const;
};

struct Over {
  Time since;
  /// Late machines are refused until then. Without it a new agent starts a new job.
  std::optional<Time> refuses_until{};
};

}  // namespace phase

/// The agents of one job and the rounds that they form (docs/protocol.md), as a pure state machine:
/// events and the time come in, messages go out. It reads no clock and uses no socket, so a test
/// can run any order of events at any speed.
///
/// The job is always in one phase:
/// - Gathering: agents wait. A round is formed when needed() machines are present and, if fewer
///   than num_machines are, JobTimes::last_call has passed. -> InRound, Refused, Over
/// - InRound: the workers of a round run. Once the attempt has ended, machines stop their workers
///   and report, within JobTimes::settle. When all have reported or are lost, the job returns to
///   Gathering (restart) or is over. -> Gathering, Over
/// - Refused: machines disagreed before the first round. All of them, also those that connect
///   later, are sent the reason. When all have been, or after JobTimes::close, the job is over.
///   -> Over
/// - Over: the job has ended. An elastic job refuses late machines for JobTimes::close.
///
/// Invariants: rounds do not overlap; all machines of a round receive the same Round except for
/// their rank; a connected agent is in a round, waits for a place, or has been told why not.
///
/// Time during which the process was suspended does not count: see `begin`. A server that was
/// stopped for an hour does not drop its agents as silent.
///
/// An agent with a key (Enter::agent) that enters again continues where its last connection ended:
/// it is sent what it may have missed, and sends again what the server may have missed, which has
/// no effect the second time. In a server that recovers, the job is determined by its events
/// (JobEvent): `repeat` makes the same changes again, in another process.
class Membership {
 public:
  /// A job with the terms and time limits of its first agent, which enters with `receive`.
  /// `recovers`: see Welcome::recovers.
  Membership(const Enter& founder, bool recovers);
  /// A job that `save` has encoded. Throws Error(protocol).
  Membership(std::string_view saved, bool recovers);

  // `other_job`: another job of this server, or null. A machine that waits in vain may belong to
  // that job: messages mention it, and see waits_at_other_job.

  /// Processes a message. The first one of an agent is Enter; it has passed `check`. Throws
  /// Error(protocol), with nothing changed, for a message that does not fit the agent's state,
  /// unless it can have crossed a message of the server.
  void receive(AgentId id, AgentMessage message, const Membership* other_job, Time now,
               Outbox& out);
  /// The agent's connection has ended. `why` appears in messages on the other machines.
  void lose(AgentId id, const std::string& why, const Membership* other_job, Time now, Outbox& out);
  /// An event of an agent (0: none) that `pass` has found to be due.
  using Due = std::pair<AgentId, Occurrence>;
  /// Does everything that is due at `now`, and returns the events.
  std::vector<Due> pass(const Membership* other_job, Time now, Outbox& out);
  /// Time at which `pass` must be called; Time::max(): never.
  [[nodiscard]] Time next_deadline() const;

  /// Makes the changes of an event that another Membership with the same state has processed.
  void repeat(JobEvent event, Outbox& out);
  /// The server serves again from `now` on: no agent has a connection, and the heartbeat timeouts
  /// start.
  void recover(Time now);
  /// Encodes the job.
  [[nodiscard]] std::string save() const;
  /// Time of the last event, less the time of suspensions, and these.
  [[nodiscard]] std::pair<Time, Time::duration> moment() const { return {now_, stalled_}; }
  /// Returns what has happened since the last call.
  std::vector<news::News> take_news() { return std::exchange(news_, {}); }
  /// Returns the agent that has this key, if there is one.
  [[nodiscard]] std::optional<AgentId> id_of(const std::string& key);
  /// Returns all agents, in order of arrival.
  [[nodiscard]] std::vector<Agent*> members() { return agents_.all(); }
  /// Name of the phase, for messages: gathering, in round, refused or over.
  [[nodiscard]] std::string_view phase_name() const {
    constexpr std::string_view kNames[] = {"gathering", "in round", "refused", "over"};
    return kNames[phase_.index()];
  }
  /// Number of rounds that were formed.
  [[nodiscard]] int num_rounds() const noexcept { return next_round_; }

  /// True if the job is over and a new agent with its run id starts a new job, even though agents
  /// of this job may still be connected.
  [[nodiscard]] bool gives_way(Time now) const;
  /// Same as gives_way, and also true for a refused job if `enter` comes from a machine that was
  /// refused and has been started again (same host and rank, another process).
  [[nodiscard]] bool gives_way_to(const Enter& enter, Time now) const;
  /// True if the job is over, or all its machines are refused.
  [[nodiscard]] bool has_ended() const {
    return is_refusing() || std::holds_alternative<phase::Over>(phase_);
  }
  /// True if the job is kept only to refuse late machines.
  [[nodiscard]] bool is_remembered() const { return has_ended() && agents_.empty(); }
  /// True in phase Refused: machines that have not connected yet will be sent the reason.
  [[nodiscard]] bool is_refusing() const { return std::holds_alternative<phase::Refused>(phase_); }
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

  // Every public event is begin(), the event's effect, go_on().
  void begin(const Membership* other_job, Time now, Outbox& out);
  void handle(AgentId id, Occurrence what);
  void go_on();
  [[nodiscard]] Time own_deadline() const;
  template <typename Coder, typename Self>
  static void code(Coder& coder, Self& self);

  // Admission.
  void enter(AgentId id, Enter enter);
  [[nodiscard]] bool has_given_up(const Agent& agent, const Enter& enter) const;
  void resume(Agent& agent, AgentId id, const Enter& enter);
  /// True if the agent may join. Otherwise drops it or, if machines disagree, all agents of the
  /// job.
  bool admit(AgentId id, const Enter& enter);
  bool claim_rank(AgentId id, const Enter& enter);
  void answer(AgentId asking);
  void give_rank_back(const Agent& agent);
  void refuse_all(AgentId newcomer, const Enter& enter, const std::string& reason);
  void refuse(phase::Refused& refused, AgentId newcomer, const Machine& machine);
  [[nodiscard]] Time end_of(const phase::Refused& refused) const;
  void make_room_for(const Agent& newcomer);

  // Messages of a known agent, one overload per type.
  void on_message(Agent& agent, Rejoin&& message);
  void on_message(Agent& agent, End&& message);
  void on_message(Agent& agent, ForceStop&& message);
  void on_message(Agent& agent, Report&& message);
  void on_message(Agent& agent, Leave&& message);
  void on_message(Agent& agent, Away&& message);
  void on_message(Agent& agent, Enter&& message);
  void on_message(Agent& /*agent*/, Beat&& /*message*/) {}           // `receive` answers it
  void on_message(Agent& /*agent*/, Status&& /*message*/) {}         // for those who watch the job
  void on_message(Agent& /*agent*/, FailureReport&& /*message*/) {}  // the same

  // Rounds. A function that enters another phase destroys the struct of the last one.
  void gather(phase::Gathering& gathering);
  void form();
  void end_attempt(phase::InRound& round, AttemptEnd end);
  void change_end(phase::Ending& ending, AttemptEnd end);
  void let_leave(Agent& agent, AttemptEnd end);
  void dismiss(Agent& agent, AttemptEnd end);
  void settle(const phase::InRound& round);
  void settle_at_limit(const Attempt& attempt, AttemptEnd end);
  void finish(RoundResult round_result);

  // Loss of agents and time limits.
  void remove(Agent& agent, const std::string& why, news::Gone::Why kind);
  void lose_from_round(phase::InRound& round, int rank, bool had_reported, const std::string& why);
  [[nodiscard]] std::optional<Occurrence> check_limits(Agent& agent);
  void schedule_check(Agent& agent);
  [[nodiscard]] Time limit_of(const Agent& agent) const;
  void time_out(Agent& agent);

  /// True if this server has formed a round of the job.
  [[nodiscard]] bool has_formed() const {
    const auto* gathering = std::get_if<phase::Gathering>(&phase_);
    return gathering != nullptr ? !gathering->is_first : !is_refusing();
  }
  [[nodiscard]] bool is_elastic() const { return !terms_.ranks_are_given && terms_.is_elastic(); }
  [[nodiscard]] int needed() const;
  [[nodiscard]] int num_in_round() const;
  [[nodiscard]] int num_present() const;
  [[nodiscard]] bool can_spare(const Agent& agent) const;
  [[nodiscard]] bool may_restart() const { return restart_count_ < terms_.max_restarts; }

  [[nodiscard]] Welcome welcome() const;
  void send(AgentId id, const ServerMessage& message);
  void send_all(const std::vector<Agent*>& agents, const ServerMessage& message);
  void drop(Agent& agent, Dropped::Why why, const std::string& reason);
  void send_waiting(Agent& agent);
  void describe_state();
  [[nodiscard]] std::string what_is_waited_for() const;
  [[nodiscard]] std::vector<int> ranks_here() const;
  [[nodiscard]] std::string about_other_job() const;
  [[nodiscard]] bool waits_at_other_job() const;
  [[nodiscard]] std::string wrong_server_reason() const;
  [[nodiscard]] std::string timeout_reason(const phase::Gathering& gathering,
                                           const Agent& agent) const;

  std::string run_id_;
  Terms terms_;
  JobTimes times_;
  Machine founder_;                // first machine of the job: terms_ and times_ are its
  std::size_t founding_bytes_;     // memory of the terms and the founder
  std::optional<Machine> server_;  // machine whose launcher runs this server
  bool recovers_ = false;

  Agents agents_;
  int next_round_ = 0;
  int restart_count_ = 0;
  std::map<int, AgentId> claims_;  // ranks_are_given: rank -> connected agent
  RankSet missing_;                // ranks_are_given: ranks whose machines have never connected
  std::variant<phase::Gathering, phase::InRound, phase::Refused, phase::Over> phase_;
  // If it recovers: result of the last round, until its agents have rejoined or left.
  std::optional<RoundResult> result_;

  // The event that is being processed.
  Time now_{};             // its time, less stalled_
  Outbox* out_ = nullptr;  // receives its messages
  const Membership* other_job_ = nullptr;
  std::string drop_reason_;  ///< of the last Dropped message
  std::vector<news::News> news_;

  // Suspension of this process: see `begin`.
  Time::duration stalled_{};  // total time for which it was suspended
  Time alive_since_{};        // silence of agents before this time does not count
};

}  // namespace acc::rendezvous::rounds
