#include "acc/launcher/placement.hpp"

#include <algorithm>

namespace acc::launcher {
namespace {

std::vector<int> cores_by_node(const HostFacts& facts) {
  std::vector<int> cores;
  for (const NumaNode& node : facts.numa_nodes) {
    cores.insert(cores.end(), node.cores.begin(), node.cores.end());
  }
  return cores.size() == facts.cores.size() ? cores : facts.cores;
}

void share_out_cores(Placements& placements, const HostFacts& facts) {
  const std::vector<int> cores = cores_by_node(facts);
  const std::size_t count = placements.workers.size();
  if (cores.size() < count) {
    placements.notices.push_back("enable_cpu_affinity: " + std::to_string(count) +
                                 " workers have no core each of " + std::to_string(cores.size()) +
                                 "; none is bound");
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const auto at = [&](std::size_t part) {
      return cores.begin() + static_cast<std::ptrdiff_t>(cores.size() * part / count);
    };
    placements.workers[i].cores.assign(at(i), at(i + 1));
  }
}

/// Why the GPU's workers stay unbound, or nothing.
std::string bind_to_node_of(const Gpu& gpu, Placement& worker, const HostFacts& facts) {
  if (gpu.numa_node < 0) {
    return facts.numa_nodes.size() == 1 ? "" : "its NUMA node is not known";
  }
  const auto node = std::ranges::find(facts.numa_nodes, gpu.numa_node, &NumaNode::id);
  if (node == facts.numa_nodes.end() || node->cores.empty()) {
    return "none of the cores that acclaunch may use is on its NUMA node " +
           std::to_string(gpu.numa_node);
  }
  worker.numa_node = gpu.numa_node;
  worker.cores = node->cores;
  return "";
}

}  // namespace

Placements place_workers(int local_world_size, const std::vector<int>& gpus, bool bind,
                         const HostFacts& facts) {
  Placements placements;
  placements.workers.resize(static_cast<std::size_t>(local_world_size));
  if (gpus.empty()) {
    if (bind) {
      share_out_cores(placements, facts);
    }
    return placements;
  }
  for (std::size_t i = 0; i < placements.workers.size(); ++i) {
    Placement& worker = placements.workers[i];
    worker.gpu = gpus[i % gpus.size()];
    if (!bind) {
      continue;
    }
    const Gpu& gpu = facts.gpu.devices[static_cast<std::size_t>(worker.gpu)];
    const std::string problem = bind_to_node_of(gpu, worker, facts);
    if (!problem.empty() && i < gpus.size()) {
      placements.notices.push_back("enable_cpu_affinity: workers of GPU " +
                                   std::to_string(worker.gpu) + " are not bound, since " + problem);
    }
  }
  return placements;
}

}  // namespace acc::launcher
