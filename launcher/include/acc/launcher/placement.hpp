#pragma once

#include "acc/launcher/host_facts.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher {

/// Which CPUs a worker may run on. From `node` on as torchrun's --numa-binding, where the node is
/// that of the worker's GPU. Workers on the CPU, for which torchrun has nothing, are spread evenly
/// over the physical cores, node by node, and have the node they come to lie on.
enum class NumaBinding {
  none,
  affinity,   ///< Accelerate's --enable_cpu_affinity: `node` where there are GPUs, and who cannot
              ///< be bound runs unbound; on the CPU an equal part of the physical cores
  node,       ///< all of the node
  socket,     ///< all of the node's socket
  exclusive,  ///< physical cores of the node that no other worker or GPU of it has
  core_complex,  ///< one last-level cache of the node: the largest first, then round robin
};

/// none, node, socket, exclusive, core-complex (or core_complex). Anything else is a mistake of
/// ours: throws Error(internal).
NumaBinding numa_binding(std::string_view name);
std::string_view to_string(NumaBinding binding) noexcept;

/// Where one worker of this machine runs.
struct Placement {
  int gpu = -1;           ///< index into the driver's devices; -1: it computes on the CPU
  int numa_node = -1;     ///< that its memory should come from; -1: the kernel's choice
  std::vector<int> cpus;  ///< that it may run on; empty: all that the launcher may
};

struct Placements {
  std::vector<Placement> workers;    ///< by local rank
  std::vector<std::string> notices;  ///< why a worker is not bound as one would think
};

/// `gpus`: those that the workers see, in CUDA's order; worker n computes on the n-th, and begins
/// again where there are fewer. Empty: on the CPU. Throws Error(config) for a binding that this
/// machine cannot give.
Placements place_workers(int local_world_size, const std::vector<int>& gpus, NumaBinding binding,
                         const HostFacts& facts);

/// How many physical cores each of these workers has, at least 1; cores that several may run on
/// count in part. The fewest where workers differ, since the slowest rank sets the pace.
int cores_per_worker(const std::vector<Placement>& workers, const HostFacts& facts);

}  // namespace acc::launcher
