// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/launcher/launch_plan.hpp"
#include "acc/rendezvous/job.hpp"
#include "acc/rendezvous/listener.hpp"
#include "acc/rendezvous/rank_status.hpp"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace acc::launcher::job {

/// One machine's view of a job's rounds, with or without other machines. The order of calls in a
/// round is: `next`, then the workers run, `end` if something ends the attempt early, `settle`;
/// then `next` again if the round result says so, else `part`. Not thread-safe: call it on the
/// event loop's thread, and await one awaitable at a time.
class Rounds {
 public:
  struct Events {
    /// Called when the attempt has been ended, here or on another machine. Called again if the end
    /// turns out to end the whole job.
    std::function<void(const rendezvous::AttemptEnd&)> on_end;
    /// Called when, after the end, another machine forces the stop.
    std::function<void()> on_force_stop;
    /// Called with each line about what this machine waits for.
    std::function<void(const std::string&)> say;
  };

  virtual ~Rounds() = default;

  /// Completes when a round with this machine is formed and the workers' store is served. Empty if
  /// the job ended without another round. Throws Error(config) if a port is in use or the machines'
  /// settings disagree, and Error(timeout) with the names of missing machines.
  virtual boost::asio::awaitable<std::optional<rendezvous::Round>> next() = 0;

  /// Ends the attempt on all machines, unless it has been ended already. `end.restarts` allows a
  /// restart.
  virtual void end(rendezvous::AttemptEnd end) = 0;
  /// Completes when the machines have agreed on the end that counts. Call only after `end`.
  virtual boost::asio::awaitable<void> end_is_known() = 0;
  /// Returns the end of the attempt that counts, or empty.
  [[nodiscard]] virtual const std::optional<rendezvous::AttemptEnd>& known_end() const = 0;
  /// Forces the stop: tells the other machines to kill their workers.
  virtual void force_stop() = 0;

  /// Reports that all workers of this machine have ended, and waits for the other machines. Returns
  /// the round result.
  virtual boost::asio::awaitable<rendezvous::RoundResult> settle(bool failed,
                                                                 std::string report) = 0;
  /// Shortens the wait in `settle`.
  virtual void hurry() = 0;

  /// Gives up this machine's place in the job. Does not wait long for an answer.
  virtual boost::asio::awaitable<void> leave() = 0;

  /// Ends the participation after the last round. Completes when no other machine needs this one's
  /// server any more.
  virtual boost::asio::awaitable<void> part() = 0;
  /// Closes all connections and listeners.
  virtual void close() = 0;

  /// Returns the port on loopback through which the workers of this machine reach their store in
  /// the current round; empty: they connect to the store itself.
  [[nodiscard]] virtual std::optional<std::uint16_t> tunnel() const { return std::nullopt; }

  /// Returns the interval at which `show` is wanted; empty: nobody can watch the job.
  [[nodiscard]] virtual std::optional<std::chrono::milliseconds> status_interval() const = 0;
  /// Shows this machine's workers to those who watch the job.
  virtual void show(std::vector<rendezvous::RankStatus> ranks) = 0;
  /// Shows the report of a failed round, as JSON. One machine calls it.
  virtual void show_report(std::string json) = 0;

  /// Returns the number of connections that this machine's servers accept in such a round. Used for
  /// the limit of open files.
  [[nodiscard]] virtual std::size_t num_clients(const rendezvous::Round& round) const = 0;
};

using MakeRounds = std::unique_ptr<Rounds>(boost::asio::io_context& io, const LaunchPlan& plan,
                                           std::string host, Rounds::Events events);
MakeRounds rounds_alone;     ///< of a job on one machine
MakeRounds rounds_together;  ///< of a job on several machines
MakeRounds make_rounds;      ///< those that the plan needs

/// True if the machines' ranks are given (static rendezvous).
[[nodiscard]] inline bool ranks_are_given(const LaunchPlan& plan) {
  return plan.rendezvous.backend == RendezvousPlan::Backend::fixed;
}

/// Returns a warning if one of the listeners is on all interfaces, else "". `address` is the
/// configured address.
std::string warning_of_all_interfaces(const std::vector<rendezvous::Listener>& listeners,
                                      const std::string& address);

/// Returns the ranks of this machine's workers in a round. `tunnel`: see Rounds::tunnel.
Assignment assignment(const LaunchPlan& plan, const rendezvous::Round& round,
                      std::optional<std::uint16_t> tunnel);

}  // namespace acc::launcher::job
