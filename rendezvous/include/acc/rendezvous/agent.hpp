#pragma once

#include "acc/rendezvous/job.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace acc::rendezvous {

/// This machine's part in a job: speaks for it to the server that forms the job's rounds.
///
/// The way of a job is `join`, then for each round: run the workers, `end` or not, `settle`, and
/// `rejoin` where another round follows. Lives on the thread of its executor; one of the awaitables
/// at a time. All errors are acc::Error and name the server's host:port.
class Agent {
 public:
  template <typename T>
  using Awaitable = boost::asio::awaitable<T>;
  using Milliseconds = std::chrono::milliseconds;

  /// What may happen at any moment between `join` and `settle`.
  struct Events {
    /// The attempt has been ended, here or elsewhere: end the workers, then `settle`. A second time
    /// where a round that was to be followed by another one turns out to be the last. Also where
    /// the server is gone, or has given this machine up; `settle` then answers with what is known
    /// here, and `rejoin` looks for the server again.
    std::function<void(const AttemptEnd&)> on_end;
    /// After the end, somebody wants it at once.
    std::function<void()> on_insist;
    /// One line of text: what is being waited for and how long already.
    std::function<void(const std::string&)> on_progress;
    /// Before each attempt to connect: the moment to become the server where nobody is. Says
    /// whether this process serves. What it throws ends the join.
    std::function<bool()> before_connecting;
    /// On each connection, before this machine introduces itself as the one at `address`: the
    /// moment to serve the workers' store there. Returns its port, which takes the place of
    /// Machine::store_port. What it throws ends the join.
    std::function<std::uint16_t(const std::string& address)> before_entering;
  };

  Agent(const boost::asio::any_io_executor& executor, std::string run_id, Terms terms,
        JobTimes times, Events events);
  /// Closes, in an event of its own too.
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  /// Connects, again and again with back-off, and asks for a place; completes when a round is
  /// formed with this machine in it. Where `me.address` is empty, the address that this machine has
  /// for the server, or the server's name where both are the same machine, is filled in. Nothing:
  /// the job ended without another round (`known_end` says why, if there is a reason), or `leave`
  /// was called. Throws Error(config) for machines that disagree, Error(timeout) that names who is
  /// missing, both as JobTimes::join says.
  Awaitable<std::optional<Round>> join(std::string host, std::uint16_t port, Machine me);

  /// Asks the server whether another machine is in the place of `me`, or disagrees with it, or
  /// whether another job is served there: then it throws Error(config) that says so, and who was
  /// waiting there is refused too. Once: completes without an answer where nobody is there.
  Awaitable<void> ask(std::string host, std::uint16_t port, Machine me);

  /// As `join`, after a settlement that another round follows. Goes on with the connection where
  /// there still is one.
  Awaitable<std::optional<Round>> rejoin(std::uint16_t store_port);

  /// Ends the attempt on all machines, unless it has been ended; `on_end` tells which end counts.
  void end(AttemptEnd end);
  /// Completes when `on_end` has told of the end, if `end` was called.
  Awaitable<void> end_is_known();
  /// Of the last round that was joined.
  [[nodiscard]] const std::optional<AttemptEnd>& known_end() const noexcept;
  /// Tells the other machines that the user will not wait for their workers.
  void insist();

  /// All workers of this machine have ended. Waits until all machines have said so or are gone.
  Awaitable<Settlement> settle(bool failed, std::string report);
  /// The user waits no longer: `settle` answers with what is known here.
  void hurry();

  /// Gives the place up, as far as that is quickly done, and closes.
  Awaitable<void> leave();
  /// No event comes any more; a pending call ends, with what is known here.
  void close() noexcept;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;  // shared with pending operations
};

}  // namespace acc::rendezvous
