#pragma once

#include "acc/rendezvous/async_client.hpp"

#include <boost/asio/awaitable.hpp>

#include <optional>
#include <string>
#include <vector>

/// How the launchers of a job end together, attempt after attempt, through the store that machine 0
/// serves. Attempts count from 0, as TORCHELASTIC_RESTART_COUNT does.
namespace acc::rendezvous {

/// Why an attempt was ended, in the words of the machine where that happened first.
struct AttemptEnd {
  int machine_rank = 0;
  int exit_status = 0;
  bool restarts = false;  ///< another attempt follows; else the job ends with it
  std::string reason;     ///< one line

  bool operator==(const AttemptEnd&) const = default;
};

/// Ends the attempt on every machine. Returns the end that counts: the first one announced. An end
/// of the whole job that finds its attempt about to be restarted ends the next one.
boost::asio::awaitable<AttemptEnd> announce_end(AsyncClient& client, std::string run_id,
                                                int attempt, AttemptEnd end);

/// Returns when any machine has announced an end; waits without limit, so give it a client of its
/// own, and close that to stop waiting.
boost::asio::awaitable<AttemptEnd> await_end(AsyncClient& client, std::string run_id, int attempt);

/// Says that all workers of this machine have ended and waits until all machines have said so. Then
/// returns the attempt's end, or nothing when every worker succeeded. Announce the end of a failed
/// attempt before. No limit, as for await_end.
boost::asio::awaitable<std::optional<AttemptEnd>> await_all_ended(AsyncClient& client,
                                                                  std::string run_id, int attempt,
                                                                  int num_machines);

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
