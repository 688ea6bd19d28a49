// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "host/topology.hpp"

#include <cstdlib>
#include <string>

namespace acc::launcher::test {

/// Returns the CPUs of a machine described in hwloc's synthetic notation (HWLOC_SYNTHETIC). All of
/// them may be used.
inline std::vector<Cpu> synthetic_machine(const std::string& description) {
  setenv("HWLOC_SYNTHETIC", description.c_str(), 1);
  std::vector<Cpu> cpus = host::detect_cpus();
  unsetenv("HWLOC_SYNTHETIC");
  return cpus;
}

/// Two sockets with two NUMA nodes each, four cores per node and two threads per core, numbered as
/// on Linux: CPUs n and n + 16 are the threads of one core. Each pair of cores of a node shares a
/// cache.
inline const std::string kBigMachine = "pack:2 group:2 [numa] l3:2 core:2 pu:2(indexes=2*16:16*1)";

}  // namespace acc::launcher::test
