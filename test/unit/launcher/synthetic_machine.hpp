#pragma once

#include "host/topology.hpp"

#include <cstdlib>
#include <string>

namespace acc::launcher::test {

/// The CPUs of a machine in hwloc's words (HWLOC_SYNTHETIC), all of which may be used.
inline std::vector<Cpu> synthetic_machine(const std::string& description) {
  setenv("HWLOC_SYNTHETIC", description.c_str(), 1);
  std::vector<Cpu> cpus = detect_cpus();
  unsetenv("HWLOC_SYNTHETIC");
  return cpus;
}

/// Two sockets of two NUMA nodes of four cores of two threads, numbered as Linux does: CPU n and
/// n + 16 are one core. Two cores of a node share a cache.
inline const std::string kBigMachine = "pack:2 group:2 [numa] l3:2 core:2 pu:2(indexes=2*16:16*1)";

}  // namespace acc::launcher::test
