// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/launcher/host_facts.hpp"

#include <string>
#include <vector>

namespace acc::launcher::host {

/// Returns the CPUs that this process may run on, as hwloc reports them. hwloc's variables, such as
/// HWLOC_SYNTHETIC and HWLOC_XMLFILE, replace this machine by another one, all of whose CPUs may be
/// used. Never empty; throws Error(internal) if hwloc fails.
std::vector<Cpu> detect_cpus();

/// Groups CPUs by equal values of `key`, in order of first appearance.
std::vector<std::vector<Cpu>> grouped(const std::vector<Cpu>& cpus, int Cpu::*key);

/// Returns the CPUs' numbers in the kernel's list format: "0-3,8,10-11".
std::string cpu_list(const std::vector<Cpu>& cpus);

}  // namespace acc::launcher::host
