#include "acc/launcher/placement.hpp"

#include "host/cores.hpp"

#include <doctest/doctest.h>

namespace acc::launcher {
namespace {

using Cores = std::vector<int>;

/// Cores 0-3 on node 0, 4-7 on node 1; GPUs 0 and 1 at node 0, 2 at node 1, 3 at an unknown one.
HostFacts two_nodes() {
  HostFacts facts;
  facts.cores = {0, 1, 2, 3, 4, 5, 6, 7};
  facts.numa_nodes = {{0, {0, 1, 2, 3}}, {1, {4, 5, 6, 7}}};
  facts.gpu.devices.resize(4);
  facts.gpu.devices[0].numa_node = 0;
  facts.gpu.devices[1].numa_node = 0;
  facts.gpu.devices[2].numa_node = 1;
  return facts;
}

TEST_CASE("core lists are read and written as the kernel does") {
  for (const std::string text : {"", "0", "0-3", "0-3,8,10-11", "5,7"}) {
    CHECK(core_list(parse_core_list(text)) == text);
  }
  CHECK(parse_core_list("0-2,7") == Cores{0, 1, 2, 7});
  CHECK(parse_core_list("x,3-").empty());
}

TEST_CASE("workers of GPUs get all cores of the GPU's node, which they share") {
  const Placements placed = place_workers(3, {2, 0, 1}, true, two_nodes());
  CHECK(placed.notices.empty());
  CHECK(placed.workers[0].gpu == 2);
  CHECK(placed.workers[0].numa_node == 1);
  CHECK(placed.workers[0].cores == Cores{4, 5, 6, 7});
  CHECK(placed.workers[1].cores == Cores{0, 1, 2, 3});
  CHECK(placed.workers[2].cores == Cores{0, 1, 2, 3});
}

TEST_CASE("more workers than GPUs take turns") {
  const Placements placed = place_workers(5, {0, 2}, true, two_nodes());
  const Cores expected = {0, 2, 0, 2, 0};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CHECK(placed.workers[i].gpu == expected[i]);
  }
}

TEST_CASE("a worker that cannot be bound runs unbound, and acclaunch says why, once a GPU") {
  HostFacts facts = two_nodes();
  Placements placed = place_workers(2, {3}, true, facts);
  CHECK(placed.workers[0].cores.empty());
  CHECK(placed.notices == std::vector<std::string>{"enable_cpu_affinity: workers of GPU 3 are not "
                                                   "bound, since its NUMA node is not known"});
  facts.numa_nodes[1].cores.clear();  // the launcher itself may use only node 0
  placed = place_workers(1, {2}, true, facts);
  CHECK(placed.workers[0].cores.empty());
  CHECK(placed.notices == std::vector<std::string>{
                              "enable_cpu_affinity: workers of GPU 2 are not bound, since none of "
                              "the cores that acclaunch may use is on its NUMA node 1"});
}

TEST_CASE("nobody is bound unasked") {
  for (const Placement& worker : place_workers(2, {0, 2}, false, two_nodes()).workers) {
    CHECK(worker.cores.empty());
    CHECK(worker.numa_node == -1);
  }
  CHECK(place_workers(2, {}, false, two_nodes()).workers[1].cores.empty());
}

TEST_CASE("on the CPU the cores are split evenly, node by node") {
  HostFacts facts = two_nodes();
  facts.numa_nodes = {{0, {0, 2, 4, 6}}, {1, {1, 3, 5, 7}}};
  const Placements placed = place_workers(2, {}, true, facts);
  CHECK(placed.workers[0].gpu == -1);
  CHECK(placed.workers[0].cores == Cores{0, 2, 4, 6});
  CHECK(placed.workers[1].cores == Cores{1, 3, 5, 7});
  std::size_t total = 0;
  for (const Placement& worker : place_workers(3, {}, true, facts).workers) {
    total += worker.cores.size();
    CHECK(worker.cores.size() >= 2);
  }
  CHECK(total == 8);
  const Placements crowded = place_workers(9, {}, true, facts);
  CHECK(crowded.workers[0].cores.empty());
  CHECK(crowded.notices.size() == 1);
}

}  // namespace
}  // namespace acc::launcher
