#pragma once

#include "acc/rendezvous/attempts.hpp"
#include "gate.hpp"
#include "job/meeting.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>

namespace acc::launcher {

/// This machine's ties to the other machines once they have met, through the store that machine 0
/// serves. The loop's thread only.
class Peers {
 public:
  using AttemptEnd = rendezvous::AttemptEnd;
  static constexpr int kConnections = 4;  ///< of a machine at most

  Peers(boost::asio::any_io_executor executor, const LaunchPlan& plan, Meeting& meeting);

  boost::asio::awaitable<void> connect();

  /// From now on tells when an attempt has been ended, here or elsewhere, or when a machine is
  /// gone: the others are tied to machine 0.
  /// `on_insist`: after the end, somebody wants it at once.
  void watch(std::function<void(const AttemptEnd&)> on_end, std::function<void()> on_insist);

  /// Ends the attempt on all machines, unless one has done so already: restarts it, or ends the
  /// job. In the background; `announced` completes when the store has answered.
  void announce(AttemptEnd::Cause cause, int exit_status, const std::string& reason,
                bool restarts = false);
  boost::asio::awaitable<void> announced() { return announced_.passed(); }

  /// Tells the other machines that the user will not wait for their workers.
  void insist() { say_later(std::nullopt); }

  /// Whether the end of this or a later attempt is known.
  [[nodiscard]] bool has_ended(int attempt) const { return attempt < watched_attempt_ || end_; }

  /// The end of the job, if it is known.
  [[nodiscard]] const std::optional<AttemptEnd>& end() const { return end_; }

  /// When the store told this machine of the attempt's end, as it told all others in that moment.
  /// Now, where it has not.
  [[nodiscard]] std::chrono::steady_clock::time_point learned_at(int attempt) const;

  /// To be called when all local workers have ended, with what is to be said of them. Waits for the
  /// other machines' workers, but once the attempt's end is known no longer than these may take.
  boost::asio::awaitable<rendezvous::Settlement> settle(std::string report);

  /// The user waits no longer.
  void hurry() { waiter_.close(); }

  /// After `settle`: true when all start again, with an empty store, and false when the job is
  /// over.
  boost::asio::awaitable<bool> restart();

  /// The last call. Returns the end that counts, if the job did not succeed.
  boost::asio::awaitable<std::optional<AttemptEnd>> finish();

  /// How a machine is called in messages: "machine 1 (node2)".
  [[nodiscard]] std::string name_of(int machine_rank) const;

 private:
  boost::asio::awaitable<void> await_ends();
  boost::asio::awaitable<void> await_machines();
  void on_machine_gone(int machine_rank);
  boost::asio::awaitable<void> send_announcements();
  boost::asio::awaitable<rendezvous::Settlement> without_the_slow(std::string report,
                                                                  std::string why);
  boost::asio::awaitable<void> open_next_attempt();
  void learn(int attempt);
  void set_end(AttemptEnd end);
  void lose_patience_later(bool restarts);
  boost::asio::awaitable<void> await_insistence();
  boost::asio::awaitable<void> send(AttemptEnd mine);
  void say_later(std::optional<AttemptEnd> announcement);
  boost::asio::awaitable<void> await_departures();
  [[nodiscard]] AttemptEnd lost(int machine_rank, const std::string& why) const;
  [[nodiscard]] const std::string& run_id() const { return plan_.rendezvous.run_id; }
  [[nodiscard]] int num_machines() const { return static_cast<int>(meeting_.machines().size()); }
  [[nodiscard]] bool is_machine_0() const { return meeting_.machine_rank() == 0; }

  boost::asio::any_io_executor executor_;
  const LaunchPlan& plan_;
  Meeting& meeting_;
  rendezvous::AsyncClient calls_;     ///< announcements, then the last call
  rendezvous::AsyncClient watcher_;   ///< the tie; waits for ends
  rendezvous::AsyncClient waiter_;    ///< waits for the others' workers to end, and to start again
  rendezvous::AsyncClient arrivals_;  ///< machine 0: waits for the others' ties
  int machines_left_;                 ///< machine 0: of the others
  Gate all_left_;
  std::set<int> gone_;  ///< machine 0: those that have left it
  boost::asio::steady_timer patience_;
  std::function<void(const AttemptEnd&)> on_end_;
  std::function<void()> on_insist_;
  int attempt_ = 0;
  int watched_attempt_ = 0;
  std::map<int, std::chrono::steady_clock::time_point> learned_at_;  ///< by attempt
  bool opening_ = false;                                             ///< the next attempt
  std::deque<std::optional<AttemptEnd>> announcements_;  ///< nothing: that the user insists
  Gate announced_;
  Gate calls_are_free_;  ///< for announcements; `calls_` takes one call at a time
  bool finishing_ = false;
  std::optional<AttemptEnd> end_;  ///< of the job: the one that counts, once known
};

}  // namespace acc::launcher
