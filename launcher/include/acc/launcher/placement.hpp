// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/launcher/host_facts.hpp"
#include "acc/settings/words.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher {

/// CPU binding policy of the workers. The values from `node` on are those of torchrun's
/// --numa-binding; "the node" is the NUMA node of the worker's GPU. torchrun has no rule for
/// workers on the CPU: they are spread evenly over the physical cores, node by node, and "the node"
/// is the one that a worker's first core belongs to.
enum class NumaBinding {
  none,          ///< no binding
  affinity,      ///< Accelerate's --enable_cpu_affinity. With GPUs: like `node`, but a worker whose
                 ///< node is unknown runs unbound. On the CPU: an equal part of the physical cores.
  node,          ///< all CPUs of the node
  socket,        ///< all CPUs of the node's socket
  exclusive,     ///< physical cores of the node that no other worker or GPU of the node uses
  core_complex,  ///< CPUs of one last-level cache of the node: the largest first, then round robin
};

}  // namespace acc::launcher

namespace acc::settings {

template <>
inline constexpr std::array kWords<launcher::NumaBinding> = {
    Word{launcher::NumaBinding::none, "none"},
    Word{launcher::NumaBinding::affinity, "affinity", ""},
    Word{launcher::NumaBinding::node, "node"},
    Word{launcher::NumaBinding::socket, "socket"},
    Word{launcher::NumaBinding::exclusive, "exclusive"},
    Word{launcher::NumaBinding::core_complex, "core-complex"}};

}  // namespace acc::settings

namespace acc::launcher {

/// Returns the policy named none, node, socket, exclusive or core-complex (also core_complex). The
/// settings table has checked the word before, so another one throws Error(internal).
NumaBinding numa_binding(std::string_view name);

/// GPU, NUMA node and CPUs of one worker of this machine.
struct Placement {
  int gpu = -1;           ///< index into the driver's devices; -1: the worker computes on the CPU
  int numa_node = -1;     ///< preferred node for the worker's memory; -1: the kernel's choice
  std::vector<int> cpus;  ///< CPUs that the worker may run on; empty: all of the launcher's
};

/// GPU and CPUs of the workers of this machine.
struct Binding {
  NumaBinding policy = NumaBinding::none;
  std::vector<Placement> workers{};  ///< by local rank
};

/// Result of `place_workers`.
struct Placements {
  std::vector<Placement> workers;    ///< by local rank
  std::vector<std::string> notices;  ///< reasons why a worker is not bound as requested
};

/// Assigns a GPU and CPUs to each worker of this machine. `gpus` lists the devices that the workers
/// see, in CUDA's order: worker n gets device n modulo the number of devices. An empty list means
/// that the workers compute on the CPU. Throws Error(not_supported) if this machine cannot provide
/// the binding.
Placements place_workers(int local_world_size, const std::vector<int>& gpus, NumaBinding binding,
                         const HostFacts& facts);

/// Returns the number of physical cores of the worker that has the fewest, at least 1: the slowest
/// rank determines the speed of the job. A core that k workers may use counts as 1/k for each.
int cores_per_worker(const std::vector<Placement>& workers, const HostFacts& facts);

}  // namespace acc::launcher
