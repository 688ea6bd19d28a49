#pragma once

#include "acc/launcher/host_facts.hpp"
#include "acc/launcher/launch_plan.hpp"
#include "acc/plugins/environment.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace acc::launcher {

/// What a manager of jobs says, and in which variable or file.
template <typename T>
struct Said {
  T value{};
  std::string where;  ///< `SLURM_NODEID`
};

/// What the manager that started this process tells of the job and of this process's place in it.
/// Whatever it does not tell is empty.
struct ClusterPlace {
  JobManager manager;  ///< "Slurm", "Open MPI", "Kubernetes", ...; "acclaunch": `start/`

  /// One of several processes that the manager started, on each machine or for each rank. Else the
  /// script of the job, or its shell, which runs once: who starts the others is the script.
  bool is_task = true;

  Said<std::string> run_id;  ///< of this job, step and requeue, and of no other; may name a file
  std::optional<Said<std::uint16_t>> port;   ///< told, or made of the job's id
  std::optional<Said<std::string>> address;  ///< of the machine with rank 0

  std::optional<Said<std::vector<std::string>>> hosts;  ///< of the step or job, by node rank
  std::optional<Said<int>> num_nodes;
  std::optional<Said<int>> node_rank;
  std::optional<Said<int>> num_tasks;
  std::optional<Said<int>> rank;                         ///< of this task
  std::optional<Said<int>> local_rank;                   ///< among the tasks of this machine
  std::optional<Said<int>> local_size;                   ///< tasks on this machine
  std::optional<Said<std::vector<int>>> tasks_per_node;  ///< or workers; by node rank

  std::vector<std::string> notices{};  ///< a line each
};

/// The innermost manager that started this process: acclaunch itself (own_variables.hpp), then Open
/// MPI, Hydra, PALS, Flux, jsrun, PMIx, then Slurm, LSF, PBS, PyTorchJob, Kubernetes. An MPI inside
/// of an allocation says the ranks, and the allocation the hosts. Nothing in a terminal, and
/// nothing below a launcher of workers (LOCAL_RANK is set), whose manager has been heard already.
/// Reads files that variables name. Throws Error(config) that names the variable whose value is not
/// what the manager writes, or that contradicts another one: a step that sees other hosts than the
/// job.
std::optional<ClusterPlace> find_place(const plugins::Environment& environment,
                                       const HostFacts& facts);

}  // namespace acc::launcher
