// SPDX-License-Identifier: Apache-2.0
#include "host/topology.hpp"

#include "acc/base/error.hpp"
#include "acc/base/text.hpp"
#include "acc/base/variables.hpp"

#include <hwloc.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>

namespace acc::launcher::host {
namespace {

struct Destroy {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
using Topology = std::unique_ptr<hwloc_topology, Destroy>;

/// False where sched_getaffinity(2) is forbidden or missing (a sandbox): hwloc then asks for ever,
/// with larger and larger masks.
bool knows_affinity() {
  constexpr std::size_t kMostCpus = std::size_t{1} << 20;
  for (std::size_t cpus = 1024; cpus <= kMostCpus; cpus *= 2) {
    cpu_set_t* const mask = CPU_ALLOC(cpus);
    const int result = ::sched_getaffinity(0, CPU_ALLOC_SIZE(cpus), mask);
    const int error = errno;
    CPU_FREE(mask);
    if (result == 0 || error != EINVAL) {  // EINVAL: the kernel knows more CPUs
      return result == 0;
    }
  }
  return false;
}

/// Removes the CPUs that the affinity mask excludes. hwloc itself removes only those that the
/// cgroup excludes. Does nothing for a topology from HWLOC_SYNTHETIC or HWLOC_XMLFILE.
void leave_out_unusable(hwloc_topology_t topology) {
  if (hwloc_topology_is_thissystem(topology) == 0) {
    return;
  }
  const hwloc_bitmap_t usable = hwloc_bitmap_alloc();
  if (hwloc_get_cpubind(topology, usable, HWLOC_CPUBIND_THREAD) == 0) {
    hwloc_topology_restrict(topology, usable, 0);
  }
  hwloc_bitmap_free(usable);
}

/// Keeps hwloc from loading its plugins (PCI, OpenCL, X11, libxml2), unless the user has chosen
/// some, for the lifetime of the object. They detect nothing that is used here, and loading their
/// libraries takes half as long as the rest of a plan.
class WithoutPlugins {
 public:
  WithoutPlugins() : chooses_(!process_variable(kVariable)) {
    if (chooses_) {
      ::setenv(kVariable, "/nonexistent", 0);
    }
  }
  ~WithoutPlugins() {
    if (chooses_) {
      ::unsetenv(kVariable);
    }
  }
  WithoutPlugins(const WithoutPlugins&) = delete;
  WithoutPlugins& operator=(const WithoutPlugins&) = delete;

 private:
  static constexpr const char* kVariable = "HWLOC_PLUGINS_PATH";
  bool chooses_;
};

Topology load_topology() {
  const WithoutPlugins while_loading;
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) {
    throw Error(Errc::internal, "hwloc cannot be initialised");
  }
  Topology topology(raw);
  // The x86 component would move this thread to every CPU in turn, to read what sysfs has already.
  hwloc_topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "x86");
  const bool asks_kernel = knows_affinity();
  if (!asks_kernel) {  // the number of CPUs is all that is known then
    hwloc_topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "linux");
  }
  if (hwloc_topology_load(raw) != 0) {
    throw Error(Errc::internal, "hwloc cannot read the topology of this machine");
  }
  if (asks_kernel) {
    leave_out_unusable(raw);
  }
  return topology;
}

/// Returns the NUMA node of a CPU. A CPU may be local to several nodes, for example with CXL
/// memory; the node with the fewest CPUs is the one of the CPU's own DRAM.
int numa_node_of_cpu(hwloc_topology_t topology, hwloc_obj_t cpu) {
  hwloc_obj_t nearest = nullptr;
  hwloc_obj_t node = nullptr;
  while ((node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != nullptr) {
    if (hwloc_bitmap_isset(node->cpuset, cpu->os_index) != 0 &&
        (nearest == nullptr ||
         hwloc_bitmap_weight(node->cpuset) < hwloc_bitmap_weight(nearest->cpuset))) {
      nearest = node;
    }
  }
  return nearest == nullptr ? 0 : static_cast<int>(nearest->os_index);
}

/// Returns the last-level data cache of a CPU; nullptr if hwloc reports none.
hwloc_obj_t last_cache_of(hwloc_obj_t cpu) {
  hwloc_obj_t last = nullptr;
  for (hwloc_obj_t object = cpu->parent; object != nullptr; object = object->parent) {
    last = hwloc_obj_type_is_dcache(object->type) != 0 ? object : last;
  }
  return last;
}

/// Assigns numbers to objects in the order of first use. hwloc's own indices may have gaps.
class Numbering {
 public:
  int of(hwloc_obj_t object) {
    const auto found = std::ranges::find(known_, object);
    if (found != known_.end()) {
      return static_cast<int>(found - known_.begin());
    }
    known_.push_back(object);
    return static_cast<int>(known_.size()) - 1;
  }

 private:
  std::vector<hwloc_obj_t> known_;
};

}  // namespace

std::vector<Cpu> detect_cpus() {
  const Topology topology = load_topology();
  Numbering cores;
  Numbering caches;
  Numbering sockets;
  std::vector<Cpu> cpus;
  hwloc_obj_t pu = nullptr;
  while ((pu = hwloc_get_next_obj_by_type(topology.get(), HWLOC_OBJ_PU, pu)) != nullptr) {
    const hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(topology.get(), HWLOC_OBJ_CORE, pu);
    const hwloc_obj_t socket =
        hwloc_get_ancestor_obj_by_type(topology.get(), HWLOC_OBJ_PACKAGE, pu);
    Cpu& cpu = cpus.emplace_back();
    cpu.id = static_cast<int>(pu->os_index);
    cpu.core = cores.of(core == nullptr ? pu : core);
    cpu.socket = sockets.of(socket);
    cpu.numa_node = numa_node_of_cpu(topology.get(), pu);
    const hwloc_obj_t cache = last_cache_of(pu);
    cpu.cache = caches.of(cache == nullptr ? socket : cache);
  }
  std::ranges::sort(cpus, {}, &Cpu::id);
  return cpus;
}

std::vector<std::vector<Cpu>> grouped(const std::vector<Cpu>& cpus, int Cpu::*key) {
  std::vector<std::vector<Cpu>> groups;
  for (const Cpu& cpu : cpus) {
    const auto same = [&](const std::vector<Cpu>& group) { return group.front().*key == cpu.*key; };
    const auto found = std::ranges::find_if(groups, same);
    (found == groups.end() ? groups.emplace_back() : *found).push_back(cpu);
  }
  return groups;
}

std::string cpu_list(const std::vector<Cpu>& cpus) {
  std::vector<int> numbers;
  numbers.reserve(cpus.size());
  for (const Cpu& cpu : cpus) {
    numbers.push_back(cpu.id);
  }
  return number_list(numbers);
}

}  // namespace acc::launcher::host
