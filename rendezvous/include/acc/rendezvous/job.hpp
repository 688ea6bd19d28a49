// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

/// Data that the machines of a job exchange with the rendezvous server.
///
/// A *job* is the set of agents (launchers, one per machine) that use the same run id at one
/// server. A *round* is a set of these machines with ranks assigned; the workers of each round use
/// a fresh store. Rounds are numbered from 0 and never overlap: a round is formed only after every
/// machine of the previous one has reported or is lost.
namespace acc::rendezvous {

/// One machine, as its agent introduces it.
struct Machine {
  /// --machine_rank, if the user gave one. It is the machine's rank if Terms::ranks_are_given;
  /// otherwise it only influences the order of ranks.
  std::optional<int> machine_rank;
  std::string host{};            ///< host name, for messages and for the order of ranks
  std::string address;           ///< address at which the other machines reach it
  std::uint16_t store_port = 0;  ///< port of the workers' store if it becomes machine 0
  int local_world_size = 1;      ///< number of workers on this machine
  int pid = 0;                   ///< process id of its agent, for messages
  bool serves = false;           ///< its agent's process runs the rendezvous server
  /// Secret of the round's workers if it becomes machine 0 (acc/base/token.hpp); empty: none.
  std::string secret{};
  std::string role{};  ///< role of its workers (torchrun's --role)

  bool operator==(const Machine&) const = default;
};

/// Pairs of name and value, in any order.
using Agreed = std::vector<std::pair<std::string, std::string>>;

/// Settings that must be equal on all machines of a job.
struct Terms {
  /// "static" rendezvous: each machine brings its rank, and all num_machines must join.
  bool ranks_are_given = false;
  int num_machines = 1;   ///< maximum
  int min_machines = 1;   ///< minimum; the job is elastic if it is less than num_machines
  int num_processes = 0;  ///< total over all machines; 0: the sum of the local world sizes
  int max_restarts = 0;   ///< restarts of the whole job
  /// Further settings that must be equal, under the names used in messages: `the program`,
  /// `--zero_stage`. A name that only one of two machines has counts as a difference.
  /// At most 256 entries, each value at most 4096 bytes, 48 KiB in total.
  Agreed agreed{};

  [[nodiscard]] bool is_elastic() const noexcept { return min_machines < num_machines; }
  bool operator==(const Terms&) const = default;
};

/// Time limits of a job. `join` is per agent; the others are those of the first agent of the job.
struct JobTimes {
  using Milliseconds = std::chrono::milliseconds;
  Milliseconds join{600'000};      ///< longest wait of this agent for a round
  Milliseconds last_call{30'000};  ///< wait for more machines after min_machines have joined
  Milliseconds heartbeat{5'000};   ///< an agent that is silent this long is lost; at least 0.1 s
  Milliseconds settle{95'000};     ///< from the end of an attempt to the last report
  /// Time after the end of an elastic job during which it refuses late machines; at most one hour.
  Milliseconds close{30'000};

  bool operator==(const JobTimes&) const = default;
};

/// Reason why the workers of a round were stopped, as reported by the machine where it occurred
/// first.
struct AttemptEnd {
  enum class Cause {
    worker,      ///< a worker failed; the machine reports tell which one failed first
    stop,        ///< a user or the system stopped the job
    other,       ///< see `reason`: a time limit passed, a launcher cannot continue, ...
    membership,  ///< a machine is lost or has left; does not use up a restart
    join,        ///< a machine has joined; those of the round are all there
  };

  int machine_rank = -1;  ///< machine of the cause; -1: a machine outside the round
  std::string host{};
  int exit_status = 0;
  bool restarts = false;  ///< true: another round follows; false: the job ends
  Cause cause = Cause::worker;
  std::string reason{};  ///< one line

  bool operator==(const AttemptEnd&) const = default;
};

/// One round, as one of its machines sees it.
struct Round {
  int round = 0;                       ///< number of the round, from 0
  int restart_count = 0;               ///< restarts used up by failures in earlier rounds
  int machine_rank = 0;                ///< rank of the receiving machine
  std::vector<int> local_world_sizes;  ///< by machine rank
  std::string store_host;              ///< address of machine 0: the workers' MASTER_ADDR
  std::uint16_t store_port = 0;        ///< store of machine 0: the workers' MASTER_PORT
  std::string secret{};                ///< secret of machine 0, for all workers; empty: none
  int first_role_rank =
      0;  ///< rank of the receiving machine's first worker among those of its role
  int role_world_size = 1;  ///< number of workers of its role
  int num_kept = 0;         ///< number of its machines that were in the round before

  [[nodiscard]] int num_machines() const noexcept {
    return static_cast<int>(local_world_sizes.size());
  }
  bool operator==(const Round&) const = default;
};

/// Report of one machine about the end of its workers in a round.
struct ReportedMachine {
  int machine_rank = 0;
  std::string host{};
  std::string report;  ///< opaque text of its agent; empty if the machine was lost before

  bool operator==(const ReportedMachine&) const = default;
};

/// Round result: sent to all machines of a round when it is over.
struct RoundResult {
  enum class Next {
    finished,    ///< the job is over
    next_round,  ///< the machine may rejoin
  };

  std::optional<AttemptEnd> end;  ///< empty if every worker succeeded
  /// Machine reports in order of machine rank. Failed machines come first where a large job's
  /// reports do not all fit the size limit. Empty after a success.
  std::vector<ReportedMachine> machines;
  Next next = Next::finished;

  bool operator==(const RoundResult&) const = default;
};

}  // namespace acc::rendezvous
