// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/job.hpp"
#include "acc/rendezvous/rank_status.hpp"
#include "acc/rendezvous/security.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace acc::rendezvous {

/// Represents this machine in a job: talks to the server that forms the job's rounds.
///
/// Order of calls: `join`, then for each round: run the workers, optionally `end`, then `settle`,
/// and `rejoin` if another round follows. `leave` or `close` ends the membership at any point.
///
/// All calls are made on the thread of the executor, and at most one awaitable is pending at a
/// time. All errors are acc::Error and name the server as host:port.
class Agent {
 public:
  template <typename T>
  using Awaitable = boost::asio::awaitable<T>;
  using Milliseconds = std::chrono::milliseconds;

  /// Callbacks that may run at any moment between `join` and `settle`, on the executor's thread.
  struct Events {
    /// The attempt has ended, on this machine or on another one: stop the workers, then call
    /// `settle`. Called a second time when a planned restart is cancelled and the round turns out
    /// to be the last one. Also called when the connection to the server is lost or the server has
    /// dropped this machine; `settle` then returns what this machine knows, and `rejoin` connects
    /// again.
    std::function<void(const AttemptEnd&)> on_end;
    /// Force stop: after the end, a user of the job asked to kill the workers without waiting.
    std::function<void()> on_force_stop;
    /// One line of text for the user: the reason for the wait and its duration so far.
    std::function<void(const std::string&)> on_progress;
    /// Called before each attempt to connect. It may start the server in this process if none is
    /// running. Returns true if this process serves. An exception ends the join.
    std::function<bool()> before_connecting;
    /// Called on each new connection, before this machine introduces itself with `address`. It
    /// starts the workers' store there and returns the store's port, which replaces
    /// Machine::store_port. An exception ends the join.
    std::function<std::uint16_t(const std::string& address)> before_entering;
  };

  /// With `security` every connection is encrypted and begins with the proof of the token; `join`
  /// and `ask` throw Error(disagreement) if server and agent do not accept each other.
  Agent(const boost::asio::any_io_executor& executor, std::string run_id, Terms terms,
        JobTimes times, Events events, std::shared_ptr<const ClientSecurity> security = nullptr);
  /// Closes the connection. May be called from inside one of the callbacks above.
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  /// Connects, with repeated attempts and exponential back-off, and asks for a place in the job.
  /// Completes when a round that includes this machine is formed. An empty `me.address` is replaced
  /// by the local address of the connection, or by `host` if the server runs on this machine.
  ///
  /// Returns nothing if the job ended without another round (`known_end` has the reason, if there
  /// is one) or if `leave` was called. Throws Error(disagreement) if the server refused this
  /// machine because machines of the job disagree, and Error(timeout), which names the missing
  /// machines, after JobTimes::join.
  Awaitable<std::optional<Round>> join(std::string host, std::uint16_t port, Machine me);

  /// Adds a further address of the rendezvous, where a server may lead while that of `join` does
  /// not. They are tried in turn. Call before `join`.
  void add_server(std::string host, std::uint16_t port);

  /// Checks for conflicts without taking a place. Throws Error(disagreement) if another machine has
  /// the place of `me`, if a machine of the job disagrees with it, or if another job is served
  /// there; the server then refuses the machines that wait there, too. Tries to connect once:
  /// completes without an error if no server answers.
  Awaitable<void> ask(std::string host, std::uint16_t port, Machine me);

  /// Same as `join`, after a round result that announces another round. Uses the existing
  /// connection if there is one.
  Awaitable<std::optional<Round>> rejoin(std::uint16_t store_port);

  /// Ends the attempt on all machines, unless it has ended already. `on_end` reports the end that
  /// the server accepted.
  void end(AttemptEnd end);
  /// Completes when `on_end` has run after a call of `end`; at once if `end` was not called.
  Awaitable<void> end_is_known();
  /// End of the round that was joined last, if it has ended.
  [[nodiscard]] const std::optional<AttemptEnd>& known_end() const noexcept;
  /// Requests a force stop: tells the other machines to kill their workers without waiting.
  void force_stop();

  /// Reports that all workers of this machine have ended. Completes when every machine of the round
  /// has reported or is lost.
  Awaitable<RoundResult> settle(bool failed, std::string report);
  /// Makes a pending or later `settle` return at once with what this machine knows; drops the
  /// connection.
  void hurry();

  /// Interval at which the server wants `show`; empty: it does not want it, or there is no
  /// connection.
  [[nodiscard]] std::optional<Milliseconds> status_interval() const noexcept;
  /// Shows this machine's workers to those who watch the job. Dropped while more than 64 KiB wait
  /// for the network.
  void show(std::vector<RankStatus> ranks);
  /// Shows the report of a failed round, as JSON.
  void show_report(std::string json);

  /// Gives up the place in the job and closes. Waits at most one second for the message to be sent.
  Awaitable<void> leave();
  /// Closes after the end of the job, when what was shown has been sent; waits at most ten seconds.
  Awaitable<void> finish();
  /// Closes the connection. No callback runs after it; a pending call completes with what this
  /// machine knows.
  void close() noexcept;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;  // shared with pending operations
};

}  // namespace acc::rendezvous
