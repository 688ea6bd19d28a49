#pragma once

#include "acc/launcher/launch_plan.hpp"
#include "acc/rendezvous/job.hpp"
#include "acc/rendezvous/listener.hpp"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace acc::launcher {

/// The rounds of a job as one of its machines takes part in them, alone or with others: `next`, the
/// workers, `end` or not, `settle`, and again. The loop's thread only, one awaitable at a time.
class Rounds {
 public:
  struct Events {
    /// The attempt has been ended, here or elsewhere; a second time where the job turns out to end
    /// with it.
    std::function<void(const rendezvous::AttemptEnd&)> on_end;
    /// After the end, somebody wants it at once.
    std::function<void()> on_insist;
    /// What is being waited for, line by line.
    std::function<void(const std::string&)> say;
  };

  virtual ~Rounds() = default;

  /// Completes when a round is formed with this machine in it, and the workers' store is served.
  /// Nothing: the job ended without another round. Throws Error(config) for a port that cannot be
  /// had and for machines that disagree, Error(timeout) that names the missing ones.
  virtual boost::asio::awaitable<std::optional<rendezvous::Round>> next() = 0;

  /// Ends the attempt on all machines, unless it has been ended. `end.restarts`: it may be started
  /// again.
  virtual void end(rendezvous::AttemptEnd end) = 0;
  /// Completes when it is known which end counts, if `end` was called.
  virtual boost::asio::awaitable<void> end_is_known() = 0;
  [[nodiscard]] virtual const std::optional<rendezvous::AttemptEnd>& known_end() const = 0;
  /// Tells the other machines that the user will not wait for their workers.
  virtual void insist() = 0;

  /// All workers of this machine have ended. Waits for those of the others.
  virtual boost::asio::awaitable<rendezvous::Settlement> settle(bool failed,
                                                                std::string report) = 0;
  /// The user waits no longer for that.
  virtual void hurry() = 0;

  /// Gives this machine's place up, as far as that is quickly done.
  virtual boost::asio::awaitable<void> leave() = 0;

  /// After the last round. Completes when no other machine needs this one any more.
  virtual boost::asio::awaitable<void> part() = 0;
  /// Serves no more.
  virtual void close() = 0;

  /// Connections from outside that this machine has to take in such a round.
  [[nodiscard]] virtual std::size_t num_clients(const rendezvous::Round& round) const = 0;
};

std::unique_ptr<Rounds> make_rounds(boost::asio::io_context& io, const LaunchPlan& plan,
                                    std::string host, Rounds::Events events);

/// What the user must know of listeners at `address`, as it was given: a sentence where they are on
/// all interfaces, else "".
std::string warning_of_all_interfaces(const std::vector<rendezvous::Listener>& listeners,
                                      const std::string& address);

/// Who the workers of this machine are.
Assignment assignment(const LaunchPlan& plan, const rendezvous::Round& round);

}  // namespace acc::launcher
