#pragma once

#include "acc/launcher/host_facts.hpp"

#include <string>
#include <vector>

namespace acc::launcher {

/// Where one worker of this machine runs.
struct Placement {
  int gpu = -1;            ///< index into the driver's devices; -1: it computes on the CPU
  int numa_node = -1;      ///< that its memory should come from; -1: the kernel's choice
  std::vector<int> cores;  ///< that it may run on; empty: all that the launcher may
};

struct Placements {
  std::vector<Placement> workers;    ///< by local rank
  std::vector<std::string> notices;  ///< why a worker that should be bound is not
};

/// `gpus`: those of the workers, in CUDA's order; worker n computes on the n-th, and begins again
/// where there are fewer. Empty: on the CPU. `bind`: with a GPU a worker gets the cores of the
/// GPU's NUMA node, which it shares with the workers of other GPUs there; on the CPU, an equal part
/// of the cores, node by node.
Placements place_workers(int local_world_size, const std::vector<int>& gpus, bool bind,
                         const HostFacts& facts);

}  // namespace acc::launcher
