// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "synthetic_machine.hpp"

#include <doctest/doctest.h>
#include <sched.h>

namespace acc::launcher {
namespace {

using test::synthetic_machine;

/// The CPUs of each group, in the kernel's list format.
std::vector<std::string> groups(const std::vector<Cpu>& cpus, int Cpu::*key) {
  std::vector<std::string> lists;
  for (const std::vector<Cpu>& group : host::grouped(cpus, key)) {
    lists.push_back(host::cpu_list(group));
  }
  return lists;
}

TEST_CASE("each CPU has its core, cache, socket and NUMA node") {
  using Lists = std::vector<std::string>;
  const std::vector<Cpu> big = synthetic_machine(test::kBigMachine);
  REQUIRE(big.size() == 32);
  CHECK(groups(big, &Cpu::core).front() == "0,16");
  CHECK(groups(big, &Cpu::core).size() == 16);
  CHECK(groups(big, &Cpu::cache).front() == "0-1,16-17");
  CHECK(groups(big, &Cpu::cache).size() == 8);
  CHECK(groups(big, &Cpu::numa_node) ==
        Lists{"0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31"});
  CHECK(groups(big, &Cpu::socket) == Lists{"0-7,16-23", "8-15,24-31"});
  CHECK(big.back().numa_node == 3);

  const std::vector<Cpu> no_threads = synthetic_machine("pack:1 [numa] l2:4 core:1 pu:1");
  CHECK(groups(no_threads, &Cpu::core).size() == 4);
  CHECK(groups(no_threads, &Cpu::cache).size() == 4);  // the last-level cache
  CHECK(synthetic_machine("pu:1").size() == 1);
  const std::vector<Cpu> bare = synthetic_machine("numa:2 pu:2(indexes=3,7,4,9)");
  CHECK(groups(bare, &Cpu::numa_node) == Lists{"3,7", "4,9"});
  CHECK(groups(bare, &Cpu::core).size() == 4);
}

/// Returns the CPUs in this thread's affinity mask.
std::vector<int> affinity() {
  cpu_set_t set;
  REQUIRE(::sched_getaffinity(0, sizeof set, &set) == 0);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) {
      cpus.push_back(cpu);
    }
  }
  return cpus;
}

std::vector<int> ids(const std::vector<Cpu>& cpus) {
  std::vector<int> numbers;
  for (const Cpu& cpu : cpus) {
    numbers.push_back(cpu.id);
  }
  return numbers;
}

TEST_CASE("only CPUs in the affinity mask count on this machine") {
  cpu_set_t before;
  REQUIRE(::sched_getaffinity(0, sizeof before, &before) == 0);
  CHECK(ids(host::detect_cpus()) == affinity());
  const int last = affinity().back();
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(last, &one);
  REQUIRE(::sched_setaffinity(0, sizeof one, &one) == 0);
  const std::vector<Cpu> cpus = host::detect_cpus();
  ::sched_setaffinity(0, sizeof before, &before);
  CHECK(ids(cpus) == std::vector<int>{last});
}

}  // namespace
}  // namespace acc::launcher
