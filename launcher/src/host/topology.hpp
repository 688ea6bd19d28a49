#pragma once

#include "acc/launcher/host_facts.hpp"

#include <string>
#include <vector>

namespace acc::launcher {

/// The CPUs that this process may run on, as hwloc sees the machine. Its own variables, such as
/// HWLOC_SYNTHETIC and HWLOC_XMLFILE, put another machine in the place of this one; then all of it
/// may be used. Never empty; throws Error(internal) where hwloc fails.
std::vector<Cpu> detect_cpus();

/// CPUs in groups of equal `key`, in the order in which the groups begin.
std::vector<std::vector<Cpu>> grouped(const std::vector<Cpu>& cpus, int Cpu::*key);

/// Their numbers as the kernel writes them: "0-3,8,10-11".
std::string cpu_list(const std::vector<Cpu>& cpus);

}  // namespace acc::launcher
