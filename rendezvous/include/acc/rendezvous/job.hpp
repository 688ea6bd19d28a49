#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

/// What the machines of a job and the server that forms their rounds tell each other.
///
/// A *job* is all agents (launchers, one a machine) that name one run id at one server. A *round*
/// is a set of them with ranks; its workers see a store of their own. Rounds count from 0 and never
/// overlap: the next one is formed when every machine of the last one has reported or is gone.
namespace acc::rendezvous {

/// One machine, as its agent introduces it.
struct Machine {
  /// As the user gave it. Terms::ranks_are_given: its rank; else it only decides the order.
  std::optional<int> machine_rank;
  std::string host{};            ///< its name: for messages, and for the order of ranks
  std::string address;           ///< where the other machines reach it
  std::uint16_t store_port = 0;  ///< where it serves the workers' store if it becomes machine 0
  int local_world_size = 1;
  int pid = 0;          ///< of its agent, for messages
  bool serves = false;  ///< the rendezvous goes with it
  /// The secret of the workers if it becomes machine 0 (acc/base/token.hpp); empty: none.
  std::string secret{};

  bool operator==(const Machine&) const = default;
};

/// By name, in any order.
using Agreed = std::vector<std::pair<std::string, std::string>>;

/// What all machines of a job must have been told alike.
struct Terms {
  bool ranks_are_given = false;  ///< "static": each machine brings its rank, all have to come
  int num_machines = 1;          ///< at most
  int min_machines = 1;
  int num_processes = 0;  ///< over all machines; 0: as many as they bring
  int max_restarts = 0;   ///< of the job
  /// What else they have to have alike, by the name that a message gives it: `the program`,
  /// `--zero_stage`. A name that only one of two machines has is a difference too.
  /// At most 256, each value with at most 4096 bytes, 48 KiB in all.
  Agreed agreed{};

  [[nodiscard]] bool is_elastic() const noexcept { return min_machines < num_machines; }
  bool operator==(const Terms&) const = default;
};

/// The limits of a job are those of the agent that came first, but for `join`.
struct JobTimes {
  using Milliseconds = std::chrono::milliseconds;
  Milliseconds join{600'000};      ///< how long this agent waits for a round
  Milliseconds last_call{30'000};  ///< for more machines, once there are enough
  Milliseconds heartbeat{5'000};   ///< an agent that is silent for so long is out; at least 0.1 s
  Milliseconds settle{95'000};     ///< from the end of an attempt to the last report
  /// An elastic job that is over refuses late comers for so long, at most an hour.
  Milliseconds close{30'000};

  bool operator==(const JobTimes&) const = default;
};

/// Why the workers of a round were ended, in the words of the machine where that happened first.
struct AttemptEnd {
  enum class Cause {
    worker,      ///< one failed; the machines' reports say which was the first
    stop,        ///< somebody wanted the end
    other,       ///< the reason says it: the time is over, a launcher cannot go on, ...
    membership,  ///< a machine is gone, or waits to join: no restart is used up
  };

  int machine_rank = -1;  ///< where; -1: on none of the round
  std::string host{};
  int exit_status = 0;
  bool restarts = false;  ///< another round follows; else the job ends with it
  Cause cause = Cause::worker;
  std::string reason{};  ///< one line

  bool operator==(const AttemptEnd&) const = default;
};

/// The machines of one round as one of them sees it.
struct Round {
  int round = 0;
  int restart_count = 0;  ///< restarts used up by failures before it
  int machine_rank = 0;
  std::vector<int> local_world_sizes;  ///< by machine rank
  std::string store_host;              ///< of machine 0, for the workers' MASTER_ADDR
  std::uint16_t store_port = 0;
  std::string secret{};  ///< of machine 0, for all workers; empty: none

  [[nodiscard]] int num_machines() const noexcept {
    return static_cast<int>(local_world_sizes.size());
  }
  bool operator==(const Round&) const = default;
};

/// How one machine of a round ended.
struct MachineWord {
  int machine_rank = 0;
  std::string host{};
  std::string report;  ///< as its agent wrote it; "": it is gone and has said nothing

  bool operator==(const MachineWord&) const = default;
};

/// What all machines of a round know when it is over.
struct Settlement {
  enum class Next {
    finished,    ///< the job is over
    next_round,  ///< join again
  };

  std::optional<AttemptEnd> end;  ///< nothing when every worker succeeded
  /// By machine rank; of a large job those that failed, as far as they fit. Empty after a success.
  std::vector<MachineWord> machines;
  Next next = Next::finished;

  bool operator==(const Settlement&) const = default;
};

}  // namespace acc::rendezvous
