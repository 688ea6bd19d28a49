// SPDX-License-Identifier: Apache-2.0
#include "acc/launcher/placement.hpp"

#include "acc/base/error.hpp"
#include "acc/base/text.hpp"
#include "support/errors.hpp"
#include "synthetic_machine.hpp"

#include <doctest/doctest.h>

#include <algorithm>

namespace acc::launcher {
namespace {

using enum NumaBinding;
using Lists = std::vector<std::string>;
using Numbers = std::vector<int>;

/// A machine whose GPU n is on NUMA node `gpu_nodes[n]`; -1: unknown.
HostFacts machine(const std::string& topology, const Numbers& gpu_nodes = {}) {
  HostFacts facts;
  facts.cpus = test::synthetic_machine(topology);
  for (const int node : gpu_nodes) {
    facts.gpu.devices.emplace_back().numa_node = node;
  }
  return facts;
}

/// The same machine without these CPUs, as if a cgroup excluded them.
HostFacts without(HostFacts facts, const Numbers& cpus) {
  std::erase_if(facts.cpus,
                [&](const Cpu& cpu) { return std::ranges::find(cpus, cpu.id) != cpus.end(); });
  return facts;
}

Lists lists(const Placements& placed) {
  Lists result;
  for (const Placement& worker : placed.workers) {
    result.push_back(number_list(worker.cpus));
  }
  return result;
}

Numbers gpus_of(const HostFacts& facts) {
  Numbers numbers;
  for (std::size_t i = 0; i < facts.gpu.devices.size(); ++i) {
    numbers.push_back(static_cast<int>(i));
  }
  return numbers;
}

TEST_CASE("bindings have torchrun's names") {
  for (const NumaBinding binding : {none, node, socket, exclusive, core_complex}) {
    CHECK(numa_binding(settings::word_of(binding).name) == binding);
  }
  CHECK(numa_binding("core_complex") == core_complex);
  CHECK_THROWS_AS(static_cast<void>(numa_binding("nodes")), Error);
}

TEST_CASE("workers on GPUs are bound to the NUMA node of their GPU") {
  const HostFacts big = machine(test::kBigMachine, {3, 0, 0, 1});
  const HostFacts single = machine("pack:1 [numa] l3:1 core:2 pu:1", {-1, -1});
  const HostFacts one_core = machine("pu:1", {0});
  struct Case {
    NumaBinding binding;
    const HostFacts& facts;
    int workers;
    Lists expected;
    int threads;
  };
  const std::vector<Case> cases = {
      {none, big, 4, {"", "", "", ""}, 4},
      {node, big, 4, {"12-15,28-31", "0-3,16-19", "0-3,16-19", "4-7,20-23"}, 2},
      {affinity, big, 4, {"12-15,28-31", "0-3,16-19", "0-3,16-19", "4-7,20-23"}, 2},
      {socket, big, 4, {"8-15,24-31", "0-7,16-23", "0-7,16-23", "0-7,16-23"}, 2},
      {exclusive, big, 4, {"12-15,28-31", "0-1,16-17", "2-3,18-19", "4-7,20-23"}, 2},
      {core_complex, big, 4, {"12-13,28-29", "0-1,16-17", "2-3,18-19", "4-5,20-21"}, 2},
      // GPU 2 has no worker, but still gets its part of node 0.
      {exclusive, big, 2, {"12-15,28-31", "0-1,16-17"}, 2},
      {core_complex, big, 1, {"12-13,28-29"}, 2},
      {node, single, 2, {"0-1", "0-1"}, 1},
      {exclusive, single, 2, {"0", "1"}, 1},
      {socket, one_core, 1, {"0"}, 1},
      // More workers than GPUs: they are assigned round robin, and each gets a part.
      {exclusive, single, 1, {"0"}, 1},
      {core_complex, one_core, 3, {"0", "0", "0"}, 1},
      {exclusive,
       big,
       8,
       {"12-13,28-29", "0,16", "1,17", "4-5,20-21", "14-15,30-31", "2,18", "3,19", "6-7,22-23"},
       1},
  };
  for (const Case& one : cases) {
    CAPTURE(settings::word_of(one.binding).name);
    CAPTURE(one.workers);
    const Placements placed =
        place_workers(one.workers, gpus_of(one.facts), one.binding, one.facts);
    CHECK(lists(placed) == one.expected);
    CHECK(placed.notices.empty());
    CHECK(cores_per_worker(placed.workers, one.facts) == one.threads);
  }
}

TEST_CASE("GPUs count in the order in which the workers see them") {
  const HostFacts big = machine(test::kBigMachine, {3, 0, 0, 1});
  const Placements placed = place_workers(2, {2, 1}, exclusive, big);
  CHECK(lists(placed) == Lists{"0-1,16-17", "2-3,18-19"});
  CHECK(placed.workers[0].gpu == 2);
  CHECK(placed.workers[1].gpu == 1);
  CHECK(place_workers(5, {0, 2}, none, big).workers[4].gpu == 0);
}

TEST_CASE("workers on the CPU are spread evenly") {
  const HostFacts big = machine(test::kBigMachine);
  const HostFacts no_threads = machine("pack:2 [numa] l3:1 core:4 pu:1");
  const HostFacts one_core = machine("pack:1 [numa] core:1 pu:2");
  // Node 0 has one usable core.
  const HostFacts narrow = without(no_threads, {0, 1, 2});
  struct Case {
    NumaBinding binding;
    const HostFacts& facts;
    int workers;
    Lists expected;
    int threads;
  };
  const std::vector<Case> cases = {
      {none, big, 3, {"", "", ""}, 5},
      {node, big, 2, {"0-3,16-19", "8-11,24-27"}, 4},
      {node, big, 4, {"0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31"}, 4},
      {socket, big, 4, {"0-7,16-23", "0-7,16-23", "8-15,24-31", "8-15,24-31"}, 4},
      {exclusive, big, 4, {"0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31"}, 4},
      {core_complex,
       big,
       8,
       {"0-1,16-17", "2-3,18-19", "4-5,20-21", "6-7,22-23", "8-9,24-25", "10-11,26-27",
        "12-13,28-29", "14-15,30-31"},
       2},
      {affinity, no_threads, 3, {"0-2", "3-5", "6-7"}, 2},
      {exclusive, no_threads, 3, {"0-1", "2-3", "4-7"}, 2},
      {affinity, one_core, 1, {"0-1"}, 1},
      {affinity, one_core, 2, {"0", "1"}, 1},  // fewer cores than workers: they share one
      {node, one_core, 2, {"0-1", "0-1"}, 1},
      {exclusive, narrow, 4, {"3", "4-5", "6", "7"}, 1},
      {affinity, narrow, 2, {"3-5", "6-7"}, 2},
  };
  for (const Case& one : cases) {
    CAPTURE(settings::word_of(one.binding).name);
    CAPTURE(one.workers);
    const Placements placed = place_workers(one.workers, {}, one.binding, one.facts);
    CHECK(lists(placed) == one.expected);
    CHECK(placed.notices.empty());
    CHECK(cores_per_worker(placed.workers, one.facts) == one.threads);
  }
}

TEST_CASE("no core is split between two workers while there are enough") {
  const HostFacts big = machine(test::kBigMachine);
  for (int workers = 1; workers <= 16; ++workers) {
    std::vector<int> owner(16, -1);
    const Placements placed = place_workers(workers, {}, affinity, big);
    std::size_t total = 0;
    for (int i = 0; i < workers; ++i) {
      const Numbers& cpus = placed.workers[static_cast<std::size_t>(i)].cpus;
      CHECK(cpus.size() >= 2 * static_cast<std::size_t>(16 / workers));
      total += cpus.size();
      for (const int cpu : cpus) {
        int& who = owner[static_cast<std::size_t>(cpu % 16)];
        CHECK((who == -1 || who == i));
        who = i;
      }
    }
    CHECK(total == 32);
  }
}

TEST_CASE("memory comes from the node where all CPUs of the worker are") {
  const HostFacts big = machine(test::kBigMachine, {3});
  CHECK(place_workers(1, {0}, node, big).workers[0].numa_node == 3);
  CHECK(place_workers(1, {0}, socket, big).workers[0].numa_node == -1);
  CHECK(place_workers(1, {0}, none, big).workers[0].numa_node == -1);
  CHECK(place_workers(2, {}, affinity, big).workers[1].numa_node == -1);
  CHECK(place_workers(4, {}, affinity, big).workers[1].numa_node == 1);
}

std::string refusal(int workers, const HostFacts& facts, NumaBinding binding) {
  return acc::test::refusal([&] { return place_workers(workers, gpus_of(facts), binding, facts); },
                            {Errc::not_supported});
}

TEST_CASE("a binding that the machine cannot provide is rejected with both counts") {
  const HostFacts big = machine(test::kBigMachine, {0, 0, 0, 1});
  CHECK(
      refusal(4, without(big, {0, 1, 16, 17}), exclusive) ==
      "numa_binding exclusive: 3 GPUs at NUMA node 0 need a physical core each, but acclaunch may "
      "use 2 there");
  CHECK(refusal(4, without(big, {4, 5, 6, 7, 20, 21, 22, 23}), node) ==
        "numa_binding node: GPU 3: none of the CPUs that acclaunch may use is on its NUMA node 1");
  // Only the GPU of a worker needs a usable node.
  CHECK(refusal(3, without(big, {4, 5, 6, 7, 20, 21, 22, 23}), node).empty());
  CHECK(refusal(3, machine("pack:1 [numa] core:2 pu:2"), exclusive) ==
        "numa_binding exclusive: 3 workers need a physical core each, but acclaunch may use 2");
}

TEST_CASE("a GPU whose NUMA node is unknown") {
  const HostFacts facts = machine(test::kBigMachine, {-1});
  const Placements bound = place_workers(1, {0}, node, facts);
  CHECK(lists(bound) == Lists{"0-3,16-19"});
  CHECK(bound.notices ==
        Lists{"numa_binding node: GPU 0: its NUMA node is not known; assuming node 0"});
  const Placements lenient = place_workers(2, {0}, affinity, facts);
  CHECK(lists(lenient) == Lists{"", ""});
  CHECK(lenient.notices ==
        Lists{"enable_cpu_affinity: workers of GPU 0 are not bound, because its NUMA node is not "
              "known"});
}

TEST_CASE("enable_cpu_affinity never makes a launch fail") {
  const HostFacts big = machine(test::kBigMachine, {0, 1});
  const HostFacts cut = without(big, {4, 5, 6, 7, 20, 21, 22, 23});
  const Placements placed = place_workers(2, {0, 1}, affinity, cut);
  CHECK(lists(placed) == Lists{"0-3,16-19", ""});
  CHECK(placed.notices ==
        Lists{"enable_cpu_affinity: workers of GPU 1 are not bound, because none of the CPUs that "
              "acclaunch may use is on its NUMA node 1"});
  const Placements crowded = place_workers(3, {}, affinity, machine("core:1 pu:2"));
  CHECK(lists(crowded) == Lists{"", "", ""});
  CHECK(crowded.notices ==
        Lists{"enable_cpu_affinity: 3 workers, but only 2 CPUs; no worker is bound"});
}

}  // namespace
}  // namespace acc::launcher
