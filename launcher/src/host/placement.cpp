// SPDX-License-Identifier: Apache-2.0
// Assignment of GPUs and CPUs to workers. The NUMA node of each worker is found first: that of its
// GPU, or, on the CPU, that of its share of the cores. Then the binding policy selects CPUs of that
// node. The policies node, socket, exclusive and core-complex give the same result as torchrun's
// --numa-binding (PyTorch 2.13, torch/numa/binding.py).
#include "acc/launcher/placement.hpp"

#include "acc/base/error.hpp"
#include "host/topology.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <set>
#include <utility>

namespace acc::launcher {
namespace {

using Cpus = std::vector<Cpu>;

constexpr int kUnbound = -1;

/// Returns the physical cores, node by node; each core is the list of its hardware threads.
std::vector<Cpus> cores_by_node(const Cpus& cpus) {
  std::vector<Cpus> cores;
  for (const Cpus& node : host::grouped(cpus, &Cpu::numa_node)) {
    std::ranges::move(host::grouped(node, &Cpu::core), std::back_inserter(cores));
  }
  return cores;
}

/// Returns part `index` of `count` parts whose sizes differ by at most one, the larger parts first.
template <typename T>
std::vector<T> part(const std::vector<T>& all, std::size_t index, std::size_t count) {
  const std::size_t least = all.size() / count;
  const std::size_t extra = all.size() % count;
  const auto at = [&](std::size_t i) {
    return all.begin() + static_cast<std::ptrdiff_t>(i * least + std::min(i, extra));
  };
  return {at(index), at(index + 1)};
}

/// Returns all CPUs of several groups, by ascending id.
Cpus joined(const std::vector<Cpus>& groups) {
  Cpus all;
  for (const Cpus& group : groups) {
    all.insert(all.end(), group.begin(), group.end());
  }
  std::ranges::sort(all, {}, &Cpu::id);
  return all;
}

/// Returns the CPUs whose `key` has this value.
Cpus with(const Cpus& cpus, int Cpu::*key, int value) {
  Cpus result;
  std::ranges::copy_if(cpus, std::back_inserter(result),
                       [&](const Cpu& cpu) { return cpu.*key == value; });
  return result;
}

/// Binds a worker to CPUs. Its memory node is set only if all of them are on one node.
void bind_worker(Placement& worker, const Cpus& cpus) {
  for (const Cpu& cpu : cpus) {
    worker.cpus.push_back(cpu.id);
  }
  const int node = cpus.front().numa_node;
  const bool same =
      std::ranges::all_of(cpus, [&](const Cpu& cpu) { return cpu.numa_node == node; });
  worker.numa_node = same ? node : -1;
}

/// Returns the physical cores that a worker may run on.
std::set<int> cores_of(const Placement& worker, const Cpus& all) {
  std::set<int> cores;
  for (const Cpu& cpu : all) {
    if (worker.cpus.empty() || std::ranges::find(worker.cpus, cpu.id) != worker.cpus.end()) {
      cores.insert(cpu.core);
    }
  }
  return cores;
}

/// Computes the placement of one machine's workers.
class Placer {
 public:
  Placer(int local_world_size, const std::vector<int>& gpus, NumaBinding binding,
         const HostFacts& facts)
      : gpus_(gpus), binding_(binding), facts_(facts) {
    result_.workers.resize(static_cast<std::size_t>(local_world_size));
  }

  Placements place() {
    for (std::size_t i = 0; i < result_.workers.size() && !gpus_.empty(); ++i) {
      result_.workers[i].gpu = gpus_[i % gpus_.size()];
    }
    if (binding_ == NumaBinding::affinity && gpus_.empty()) {
      share_out_cores();
    } else if (binding_ != NumaBinding::none) {
      bind_to_nodes();
    }
    return std::move(result_);
  }

 private:
  [[nodiscard]] std::string name() const {
    return binding_ == NumaBinding::affinity
               ? "enable_cpu_affinity"
               : "numa_binding " + std::string(settings::word_of(binding_).name);
  }

  [[nodiscard]] Error impossible(const std::string& why) const {
    return {Errc::not_supported, name() + ": " + why};
  }

  /// Affinity on the CPU: divides the physical cores evenly. Hardware threads are divided instead
  /// if there are fewer cores than workers.
  void share_out_cores() {
    const std::size_t count = result_.workers.size();
    std::vector<Cpus> units = cores_by_node(facts_.cpus);
    if (units.size() < count) {
      units = host::grouped(facts_.cpus, &Cpu::id);
    }
    if (units.size() < count) {
      result_.notices.push_back(name() + ": " + std::to_string(count) + " workers, but only " +
                                std::to_string(units.size()) +
                                (units.size() == 1 ? " CPU" : " CPUs") + "; no worker is bound");
      return;
    }
    for (std::size_t i = 0; i < count; ++i) {
      bind_worker(result_.workers[i], joined(part(units, i, count)));
    }
  }

  void bind_to_nodes() {
    find_nodes();
    for (std::size_t slot = 0; slot < result_.workers.size(); ++slot) {
      if (nodes_[slot] != kUnbound) {
        bind_worker(result_.workers[slot], cpus_of(slot));
      }
    }
  }

  /// Fills `nodes_`. A slot is a worker, or a GPU without a worker: as in torchrun, such a GPU
  /// takes its share of the node's cores too.
  void find_nodes() {
    const std::size_t slots = std::max(result_.workers.size(), gpus_.size());
    if (gpus_.empty()) {
      spread_over_cores();
      return;
    }
    for (std::size_t slot = 0; slot < gpus_.size(); ++slot) {
      nodes_.push_back(node_of(gpus_[slot]));
      if (slot < result_.workers.size()) {
        check_node(gpus_[slot], nodes_.back());
      }
    }
    for (std::size_t slot = gpus_.size(); slot < slots; ++slot) {
      nodes_.push_back(nodes_[slot % gpus_.size()]);
    }
  }

  /// Sets the nodes of workers on the CPU: worker i starts at core i * cores / workers.
  void spread_over_cores() {
    const std::vector<Cpus> cores = cores_by_node(facts_.cpus);
    const std::size_t count = result_.workers.size();
    if (binding_ == NumaBinding::exclusive && cores.size() < count) {
      throw impossible(std::to_string(count) +
                       " workers need a physical core each, but acclaunch may use " +
                       std::to_string(cores.size()));
    }
    for (std::size_t slot = 0; slot < count; ++slot) {
      nodes_.push_back(cores[slot * cores.size() / count].front().numa_node);
    }
  }

  /// Returns a GPU's node; the lowest node if it is unknown, as in torchrun.
  [[nodiscard]] int node_of(int gpu) const {
    const int node = facts_.gpu.devices[static_cast<std::size_t>(gpu)].numa_node;
    return node >= 0 ? node : std::ranges::min(facts_.cpus, {}, &Cpu::numa_node).numa_node;
  }

  /// Handles a node that is unknown, or that has no usable CPU. Affinity leaves the workers
  /// unbound, as Accelerate does; the other policies assume a node, or throw Error(config).
  void check_node(int gpu, int& node) {
    const bool known = facts_.gpu.devices[static_cast<std::size_t>(gpu)].numa_node >= 0 ||
                       host::grouped(facts_.cpus, &Cpu::numa_node).size() == 1;
    const bool usable = !with(facts_.cpus, &Cpu::numa_node, node).empty();
    if (known && usable) {
      return;
    }
    const std::string number = std::to_string(gpu);
    const std::string why = known ? "none of the CPUs that acclaunch may use is on its NUMA node " +
                                        std::to_string(node)
                                  : "its NUMA node is not known";
    if (binding_ == NumaBinding::affinity) {
      result_.notices.push_back(name() + ": workers of GPU " + number + " are not bound, because " +
                                why);
      node = kUnbound;
    } else if (known) {
      throw impossible("GPU " + number + ": " + why);
    } else {
      result_.notices.push_back(name() + ": GPU " + number + ": " + why + "; assuming node " +
                                std::to_string(node));
    }
  }

  [[nodiscard]] Cpus cpus_of(std::size_t slot) const {
    const Cpus node = with(facts_.cpus, &Cpu::numa_node, nodes_[slot]);
    switch (binding_) {
      case NumaBinding::socket: return with(facts_.cpus, &Cpu::socket, node.front().socket);
      case NumaBinding::exclusive: return exclusive_cpus(node, slot);
      case NumaBinding::core_complex: return core_complex(node, slot);
      default: return node;
    }
  }

  /// Returns how many of the first `end` slots are on a node.
  [[nodiscard]] std::size_t slots_of_node(std::size_t end, int node) const {
    return static_cast<std::size_t>(
        std::count(nodes_.begin(), nodes_.begin() + static_cast<std::ptrdiff_t>(end), node));
  }

  [[nodiscard]] Cpus exclusive_cpus(const Cpus& node, std::size_t slot) const {
    const std::vector<Cpus> cores = host::grouped(node, &Cpu::core);
    const std::size_t sharers = slots_of_node(nodes_.size(), nodes_[slot]);
    if (cores.size() < sharers) {
      throw impossible(std::to_string(sharers) + " GPUs at NUMA node " +
                       std::to_string(nodes_[slot]) +
                       " need a physical core each, but acclaunch may use " +
                       std::to_string(cores.size()) + " there");
    }
    return joined(part(cores, slots_of_node(slot, nodes_[slot]), sharers));
  }

  [[nodiscard]] Cpus core_complex(const Cpus& node, std::size_t slot) const {
    std::vector<Cpus> caches = host::grouped(node, &Cpu::cache);
    std::ranges::stable_sort(caches, std::greater<>{}, &Cpus::size);
    return caches[slots_of_node(slot, nodes_[slot]) % caches.size()];
  }

  const std::vector<int>& gpus_;
  const NumaBinding binding_;
  const HostFacts& facts_;
  std::vector<int> nodes_;  ///< by slot; kUnbound: the worker is not bound
  Placements result_;
};

}  // namespace

NumaBinding numa_binding(std::string_view name) {
  std::string spelled(name);
  std::ranges::replace(spelled, '_', '-');
  const auto binding = settings::value_named<NumaBinding>(spelled);
  if (!binding) {
    throw Error(Errc::internal, "no numa_binding is called \"" + std::string(name) + "\"");
  }
  return *binding;
}

Placements place_workers(int local_world_size, const std::vector<int>& gpus, NumaBinding binding,
                         const HostFacts& facts) {
  return Placer(local_world_size, gpus, binding, facts).place();
}

int cores_per_worker(const std::vector<Placement>& workers, const HostFacts& facts) {
  std::map<int, int> users;  // number of workers that may run on each core
  std::vector<std::set<int>> cores;
  for (const Placement& worker : workers) {
    cores.push_back(cores_of(worker, facts.cpus));
    for (const int core : cores.back()) {
      ++users[core];
    }
  }
  constexpr double kRounding = 1e-9;  // so that three shares of 1/3 count as one core
  double fewest = static_cast<double>(facts.cpus.size());
  for (const std::set<int>& mine : cores) {
    double share = kRounding;
    for (const int core : mine) {
      share += 1.0 / users[core];
    }
    fewest = std::min(fewest, share);
  }
  return std::max(1, static_cast<int>(fewest));
}

}  // namespace acc::launcher
