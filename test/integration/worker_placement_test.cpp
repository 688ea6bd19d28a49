// SPDX-License-Identifier: Apache-2.0
// CPU placement of workers, which each worker reads from the kernel.
#include "support/program.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>
#include <sched.h>

#include <vector>

using namespace acc::test;

namespace {

using Words = std::vector<std::string>;

/// Returns the CPUs that this process may run on.
Words usable_cpus() {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  ::sched_getaffinity(0, sizeof usable, &usable);
  Words cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &usable)) {
      cpus.push_back(std::to_string(cpu));
    }
  }
  return cpus;
}

struct Ran {
  int status;
  std::string out, err;
};

/// Starts two workers that print their CPUs and threads, with simulated GPUs or without GPUs.
Ran two_workers(const std::string& topology, const std::string& gpus, Words flags,
                std::map<std::string, std::string> variables = {}) {
  Words command = {ACC_BIN_DIR "/acclaunch", "--num_processes", "2"};
  command.insert(command.end(), flags.begin(), flags.end());
  command.insert(command.end(),
                 {"/bin/sh", "-c",
                  R"(echo "on $(sed -n 's/Cpus_allowed_list:\t//p' /proc/self/status) threads )"
                  R"($OMP_NUM_THREADS")"});
  variables["HWLOC_SYNTHETIC"] = topology;
  variables["ACC_SIMULATE_GPUS"] = gpus;
  Program program(command, variables);
  const int status = program.wait();
  return {status, program.out(), program.err()};
}

}  // namespace

TEST_CASE("placement: workers run on the CPUs of their NUMA node, GPU or not" *
          doctest::skip(usable_cpus().size() < 2)) {
  const Words cpus = usable_cpus();
  const std::string nodes = "numa:2 pu:1(indexes=" + cpus[0] + "," + cpus[1] + ")";
  for (const std::string gpus : {"0", "2"}) {
    CAPTURE(gpus);
    for (const Words& flags :
         {Words{"--numa-binding", "node"}, Words{"--enable_cpu_affinity"},
          Words{"--numa_binding=exclusive"}, Words{"--numa_binding", "core-complex"}}) {
      CAPTURE(flags.front());
      const Ran ran = two_workers(nodes, gpus, flags);
      CHECK(ran.status == 0);
      CHECK(contains(ran.out, "[0] on " + cpus[0] + " threads 1\n"));
      CHECK(contains(ran.out, "[1] on " + cpus[1] + " threads 1\n"));
    }
  }
  const Ran turned =
      two_workers(nodes, "2", {"--numa-binding", "node"}, {{"CUDA_VISIBLE_DEVICES", "1,0"}});
  CHECK(contains(turned.out, "[0] on " + cpus[1] + " "));
}

TEST_CASE("placement: OMP_NUM_THREADS is the number of a worker's physical cores" *
          doctest::skip(usable_cpus().size() < 2)) {
  const Words cpus = usable_cpus();
  const std::string both = "(indexes=" + cpus[0] + "," + cpus[1] + ")";
  const std::string list =
      cpus[0] + (std::stoi(cpus[1]) == std::stoi(cpus[0]) + 1 ? "-" : ",") + cpus[1];
  const Ran unbound = two_workers("numa:1 core:1 pu:2" + both, "0", {});
  CHECK(contains(unbound.out, " threads 1\n"));
  const Ran shared = two_workers("numa:1 core:2 pu:1" + both, "2", {"--numa-binding", "node"});
  CHECK(contains(shared.out, "[1] on " + list + " threads 1\n"));
  const Ran told = two_workers("numa:1 core:2 pu:1" + both, "2",
                               {"--numa-binding", "node", "--num_cpu_threads_per_process", "7"});
  CHECK(contains(told.out, " threads 7\n"));
}

TEST_CASE("placement: a binding that is not possible is an error before the start") {
  const Ran cramped = two_workers("numa:1 core:1 pu:2", "2", {"--numa-binding", "exclusive"});
  CHECK(cramped.status == 2);
  CHECK(cramped.out.empty());
  CHECK(contains(cramped.err,
                 "2 GPUs at NUMA node 0 need a physical core each, but acclaunch may use 1"));
  const Ran both = two_workers("pu:2", "2", {"--numa-binding", "node", "--enable_cpu_affinity"});
  CHECK(both.status == 2);
  CHECK(contains(both.err, "--numa-binding and --enable_cpu_affinity both bind workers to cores"));
  const Ran word = two_workers("pu:2", "2", {"--numa-binding", "nodes"});
  CHECK(contains(word.err, "did you mean \"node\"?"));
}
