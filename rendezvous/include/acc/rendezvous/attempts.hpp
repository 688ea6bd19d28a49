#pragma once

#include "acc/rendezvous/async_client.hpp"

#include <boost/asio/awaitable.hpp>

#include <optional>
#include <string>
#include <vector>

/// How the launchers of a job end together, attempt after attempt, through the store that machine 0
/// serves. Attempts count from 0, as TORCHELASTIC_RESTART_COUNT does.
namespace acc::rendezvous {

class Server;

/// Why an attempt was ended, in the words of the machine where that happened first.
struct AttemptEnd {
  enum class Cause {
    worker,  ///< one failed; the machines' reports say which was the first
    stop,    ///< somebody wanted the end
    other,   ///< the reason says it: a machine is gone, the time is over, ...
  };

  int machine_rank = 0;
  int exit_status = 0;
  bool restarts = false;  ///< another attempt follows; else the job ends with it
  Cause cause = Cause::worker;
  std::string reason;  ///< one line

  bool operator==(const AttemptEnd&) const = default;
};

/// Ends the attempt on every machine. Returns the end that counts: the first one announced. An end
/// of the whole job that finds its attempt about to be restarted ends the next one.
boost::asio::awaitable<AttemptEnd> announce_end(AsyncClient& client, std::string run_id,
                                                int attempt, AttemptEnd end);

/// Returns when any machine has announced an end; waits without limit, so give it a client of its
/// own, and close that to stop waiting.
boost::asio::awaitable<AttemptEnd> await_end(AsyncClient& client, std::string run_id, int attempt);

/// What all machines say when their workers have ended.
struct Settlement {
  std::optional<AttemptEnd> end;     ///< nothing when every worker succeeded
  std::vector<std::string> reports;  ///< by machine rank; "" where there is none
};

/// Whoever wanted the end has said so twice: no machine lets its workers end by themselves any
/// more.
boost::asio::awaitable<void> insist(AsyncClient& client, std::string run_id);
/// No limit, as for await_end.
boost::asio::awaitable<void> await_insistence(AsyncClient& client, std::string run_id);

/// Says in `report`, which is not empty, how the workers of this machine have ended, and waits
/// until all machines have said so or are gone. Announce the end of a failed attempt before. No
/// limit, as for await_end.
boost::asio::awaitable<Settlement> settle(AsyncClient& client, std::string run_id, int attempt,
                                          int machine_rank, int num_machines, std::string report);

/// What is known of that by now.
boost::asio::awaitable<Settlement> settled_so_far(AsyncClient& client, std::string run_id,
                                                  int attempt, int num_machines);

/// Machine 0, about one that is gone: it will not report, unless it has.
void report_nothing(Server& server, const std::string& run_id, int attempt, int machine_rank);

/// Ties this machine to the store by the connection of `client`: Server::on_machine_gone tells when
/// that ends.
boost::asio::awaitable<void> tie(AsyncClient& client, std::string run_id, int machine_rank);

/// The machines, machine 0 apart, that have not tied themselves within `timeout`.
boost::asio::awaitable<std::vector<int>> await_ties(AsyncClient& client, std::string run_id,
                                                    int num_machines,
                                                    AsyncClient::Milliseconds timeout);

/// Machine 0 has cleared the store for `attempt`; the others wait for that.
boost::asio::awaitable<void> open_attempt(AsyncClient& client, std::string run_id, int attempt);
boost::asio::awaitable<void> await_attempt(AsyncClient& client, std::string run_id, int attempt);

/// Says that this machine needs the store no more, and waits until all machines have said so, up to
/// `timeout` (none: without limit; zero: only says it). False at the timeout. Machine 0 stops its
/// server after this: Server::stop still delivers the others' release.
boost::asio::awaitable<bool> finish(AsyncClient& client, std::string run_id, int num_machines,
                                    std::optional<AsyncClient::Milliseconds> timeout);

}  // namespace acc::rendezvous
