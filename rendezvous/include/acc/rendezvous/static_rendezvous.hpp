#pragma once

#include "acc/rendezvous/async_client.hpp"

#include <boost/asio/awaitable.hpp>

#include <optional>
#include <string>
#include <vector>

/// How the launchers of a fixed set of machines find each other and end together, through a store
/// that machine 0 serves. All keys are below "acc/<run_id>/"; a run id serves one run.
namespace acc::rendezvous {

/// One machine of a job, as it introduces itself to the others.
struct Machine {
  int machine_rank = 0;
  std::string host;     ///< its name, for messages
  std::string address;  ///< where the other machines reach it
  int local_world_size = 1;
  int pid = 0;  ///< of its launcher

  bool operator==(const Machine&) const = default;
};

/// How a job ended, in the words of the machine where it ended first.
struct JobEnd {
  int machine_rank = 0;
  int exit_status = 0;
  std::string reason;  ///< one line

  bool operator==(const JobEnd&) const = default;
};

/// Registers `me` and returns all machines, by rank, as soon as the last one is there.
///
/// Throws Error(config), here and on every machine that waits, when two machines disagree about
/// num_machines or num_processes or claim one rank (a dead launcher of this host gives its rank
/// up); the message names both and what they said. Throws Error(timeout) that names the missing
/// ranks. `progress` hears every `interval` who is missing.
boost::asio::awaitable<std::vector<Machine>> join(
    AsyncClient& client, std::string run_id, Machine me, int num_machines, int num_processes,
    AsyncClient::Milliseconds timeout, AsyncClient::Progress progress = {},
    AsyncClient::Milliseconds interval = AsyncClient::kProgressInterval);

/// Ends the job on every machine. Returns the end that counts: the first one announced.
boost::asio::awaitable<JobEnd> announce_end(AsyncClient& client, std::string run_id, JobEnd end);

/// Returns when any machine has announced an end; waits without limit, so give it a client of its
/// own, and close that to stop waiting.
boost::asio::awaitable<JobEnd> await_end(AsyncClient& client, std::string run_id);

/// Says that this machine needs the store no more, and waits until all machines have said so, up to
/// `timeout` (none: without limit; zero: only says it). False at the timeout. Machine 0 stops its
/// server after this: Server::stop still delivers the others' release.
boost::asio::awaitable<bool> finish(AsyncClient& client, std::string run_id, int num_machines,
                                    std::optional<AsyncClient::Milliseconds> timeout);

}  // namespace acc::rendezvous
