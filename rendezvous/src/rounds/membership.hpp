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

/// One message to one agent, as a frame: many agents may share it.
struct Letter {
  AgentId to = 0;
  std::shared_ptr<const std::string> frame;
  /// The server then closes the connection, and the membership knows the agent no more.
  bool is_last = false;
  /// And the agent is taken for dead: nobody waits until it has heard this.
  bool is_lost = false;
};

/// What the server is to send, in this order.
using Outbox = std::vector<Letter>;

/// The agents of one job, and the rounds that they form: a pure state machine. Events and the time
/// come in, messages go out; it reads no clock and knows no socket, so a test can walk through any
/// order of events at any speed.
///
/// Time that it was not looked at when it had asked for it is no time: a server that was suspended
/// for an hour finds its agents as they were.
class Membership {
 public:
  Membership(std::string run_id, Terms terms, JobTimes times);

  /// Another job of this server, for the next event: who waits in vain may belong there.
  void look_beside(const Membership* other) { beside_ = other; }

  /// The first message is Enter, checked. Throws Error(protocol) for one that does not fit the
  /// agent's state and that no race explains; nothing has changed then.
  void receive(AgentId id, AgentMessage message, Time now, Outbox& out);
  /// Its connection has ended. `why` is for the other machines' users.
  void lose(AgentId id, const std::string& why, Time now, Outbox& out);
  /// Does what is due.
  void pass(Time now, Outbox& out);
  /// When `pass` has something to do; Time::max(): never.
  [[nodiscard]] Time next_deadline() const;

  /// The job is over: who names its run id begins another one, though agents of this may be here.
  [[nodiscard]] bool gives_way(Time now) const;
  /// Likewise a job of machines that disagreed, to one that was refused and has been started again.
  [[nodiscard]] bool gives_way_to(const Enter& enter, Time now) const;
  /// It is kept for late comers only.
  [[nodiscard]] bool is_remembered() const {
    return (phase_ == Phase::over || phase_ == Phase::refused) && agents_.empty();
  }
  /// Machines that are still to come will hear why the others were refused.
  [[nodiscard]] bool is_refusing() const { return phase_ == Phase::refused; }
  /// A machine of this job serves the rendezvous, and is here.
  [[nodiscard]] bool is_served_by_its_own() const { return server_.has_value(); }
  /// Memory that it takes, about, in bytes.
  [[nodiscard]] std::size_t bytes() const;
  /// Memory that a job takes which such an agent founds.
  static std::size_t bytes_to_found(const Enter& enter);
  /// Nothing of it needs to be kept.
  [[nodiscard]] bool is_forgotten(Time now) const;

 private:
  using State = Agent::State;
  using Milliseconds = JobTimes::Milliseconds;
  using Refused = std::tuple<std::string, std::optional<int>, int>;  // host, rank, pid
  enum class Phase : std::uint8_t { gathering, running, ending, over, refused };

  static std::size_t bytes_of(const Agreed& agreed);
  void begin(Time now, Outbox& out);
  void go_on();

  void enter(AgentId id, Enter enter);
  /// Whether it may come; drops it, or everybody, where not.
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

  void hear(Agent& agent, Enter&& message);
  void hear(Agent& agent, Rejoin&& message);
  void hear(Agent& agent, Beat&& message);
  void hear(Agent& agent, End&& message);
  void hear(Agent& agent, Insist&& message);
  void hear(Agent& agent, Report&& message);
  void hear(Agent& agent, Leave&& message);

  void gather();
  void form();
  void end_attempt(AttemptEnd end);
  /// Another reason, or another sequel, has come up while the workers are being ended.
  void change_end(AttemptEnd end);
  void leave_alone(Agent& agent, AttemptEnd end);
  void dismiss(Agent& agent, AttemptEnd end);
  void settle();
  void settle_without_the_slow();
  void finish(Settlement settlement);

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
  std::size_t founding_bytes_ = 0;   // of the terms and the founder
  std::optional<Machine> founder_;  // whose terms these are
  std::optional<Machine> server_;   // that the rendezvous goes with

  Agents agents_;
  Phase phase_ = Phase::gathering;
  bool has_formed_ = false;  // a round, here
  int next_round_ = 0;
  int restart_count_ = 0;

  // gathering
  std::map<int, AgentId> claims_;  // of given ranks
  RankSet missing_;                // given ranks whose machines never came
  bool is_short_ = false;          // fewer than needed wait
  Time short_since_{};
  int most_waiting_ = 0;  // since then
  bool needs_last_call_ = true;
  std::optional<Time> last_call_;

  // running, ending
  Attempt attempt_;
  std::optional<AttemptEnd> end_;
  bool uses_restart_ = false;
  bool is_insisted_ = false;  // all have heard it
  Time settle_by_{};

  Time over_since_{};

  // refused
  std::string refusal_;
  std::set<Refused> refused_;
  std::set<int> refused_ranks_;
  std::size_t num_refused_ = 0;
  std::size_t refused_bytes_ = 0;
  int fewest_wanted_ = 0;  // machines, by what they say
  Time refuses_until_{};

  // of the event that is being dealt with
  Time now_{};
  Outbox* out_ = nullptr;
  const Membership* beside_ = nullptr;
  Time::duration stalled_{};
  Time alive_since_{};  // no agent counts as silent before
};

}  // namespace acc::rendezvous::rounds
