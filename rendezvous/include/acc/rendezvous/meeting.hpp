#pragma once

#include "acc/rendezvous/async_client.hpp"

#include <boost/asio/awaitable.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

/// How the launchers of a job find each other through a store: all keys are below
/// "acclaunch/<run_id>/", and a run id serves one run.
namespace acc::rendezvous {

class Server;

/// One machine of a job, as it introduces itself to the others.
struct Machine {
  int machine_rank = 0;
  std::string host;     ///< its name, for messages
  std::string address;  ///< where the other machines reach it
  int local_world_size = 1;
  int pid = 0;            ///< of its launcher
  std::string pid_space;  ///< where that pid counts, see own_pid_space()

  bool operator==(const Machine&) const = default;
};

/// Names the running kernel and the PID namespace of this process: hosts may share a name, and
/// containers a host, without seeing each other's processes.
std::string own_pid_space();

/// What all machines of a job must have been told alike.
struct Terms {
  int num_machines = 1;   ///< at most
  int min_machines = 1;   ///< `meet_by_arrival` only
  int num_processes = 0;  ///< over all machines; 0: as many as they bring
  int max_restarts = 0;

  bool operator==(const Terms&) const = default;
};

struct MeetingTimes {
  AsyncClient::Milliseconds timeout{900'000};
  AsyncClient::Milliseconds last_call{30'000};  ///< for more machines, once `min_machines` came
  AsyncClient::Milliseconds interval = AsyncClient::kProgressInterval;
};

/// Registers `me` under its rank and returns all machines, by rank, as soon as the last one is
/// there.
///
/// Throws Error(config), here and on every machine that waits, when two machines disagree about the
/// terms or claim one rank (a dead launcher of this PID space gives its rank up), or when
/// num_processes is not the sum of what the machines bring; the message names them and what they
/// said. Throws Error(timeout) that names the missing ranks. `progress` hears every interval who is
/// missing.
boost::asio::awaitable<std::vector<Machine>> meet_by_rank(AsyncClient& client, std::string run_id,
                                                          Machine me, Terms terms,
                                                          MeetingTimes times = {},
                                                          AsyncClient::Progress progress = {});

/// The machines that make up a job, by rank, and which of them this one became.
struct Round {
  std::vector<Machine> machines;
  int machine_rank = 0;
};

/// As `meet_by_rank`, but ranks are handed out in the order of arrival; who left before the end has
/// none. Complete when num_machines are there, or min_machines and the last call is over; who comes
/// later gets Error(config).
boost::asio::awaitable<Round> meet_by_arrival(AsyncClient& client, std::string run_id, Machine me,
                                              Terms terms, MeetingTimes times = {},
                                              AsyncClient::Progress progress = {});

/// Makes `me`, who serves the meeting, the first to arrive there. To be called before the server's
/// io_context runs; `meet_by_arrival` with the same `me` follows.
void arrive_first(Server& server, const std::string& run_id, Machine me);

/// Gives back the rank that `me` has claimed, unless the job has already formed: for a launcher
/// that is told to end while it waits.
boost::asio::awaitable<void> leave(AsyncClient& client, std::string run_id, Machine me,
                                   Terms terms);

/// Where the workers' store is, which machine 0 of a round publishes and the others await.
struct StoreAddress {
  std::string host;
  std::uint16_t port = 0;
};
boost::asio::awaitable<void> publish_store(AsyncClient& client, std::string run_id,
                                           StoreAddress store);
boost::asio::awaitable<StoreAddress> await_store(AsyncClient& client, std::string run_id,
                                                 AsyncClient::Milliseconds timeout);

}  // namespace acc::rendezvous
