// SPDX-License-Identifier: Apache-2.0
#include "commands/env/facts.hpp"
#include "host/topology.hpp"

#include <gnu/libc-version.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>

namespace acc::launcher::commands {
namespace {

std::string gibibytes(double bytes) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f GiB", bytes / (1024.0 * 1024.0 * 1024.0));
  return text.data();
}

/// Returns ", Debian GNU/Linux 12 (bookworm)", or an empty string if unknown.
std::string distribution() {
  std::ifstream file("/etc/os-release");
  constexpr std::string_view kKey = "PRETTY_NAME=";
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(kKey)) {
      std::erase(line, '"');
      return ", " + line.substr(kKey.size());
    }
  }
  return {};
}

std::string platform() {
  utsname name{};
  ::uname(&name);
  return std::string(name.sysname) + " " + name.release + " " + name.machine + distribution();
}

std::string memory() {
  struct sysinfo info {};
  ::sysinfo(&info);
  const double unit = info.mem_unit;
  return gibibytes(static_cast<double>(info.totalram) * unit) + ", " +
         gibibytes(static_cast<double>(info.freeram) * unit) + " free";
}

std::string cores(const HostFacts& host) {
  return std::to_string(host::grouped(host.cpus, &Cpu::core).size()) + " usable (CPUs " +
         host::cpu_list(host.cpus) + " of " + std::to_string(::sysconf(_SC_NPROCESSORS_ONLN)) + ")";
}

std::string numa(const HostFacts& host) {
  const auto nodes = host::grouped(host.cpus, &Cpu::numa_node);
  std::string text = std::to_string(nodes.size());
  for (const std::vector<Cpu>& node : nodes) {
    text += "; node " + std::to_string(node.front().numa_node) + ": CPUs " + host::cpu_list(node);
  }
  return text;
}

std::string shared_memory() {
  struct statvfs place {};
  if (::statvfs("/dev/shm", &place) != 0) {
    return "not mounted";
  }
  const double block = static_cast<double>(place.f_frsize);
  return gibibytes(block * static_cast<double>(place.f_blocks)) + ", " +
         gibibytes(block * static_cast<double>(place.f_bavail)) + " free";
}

/// Returns the soft and hard limit of a resource.
std::string limit(int resource) {
  rlimit limits{};
  ::getrlimit(static_cast<__rlimit_resource_t>(resource), &limits);
  const auto word = [](rlim_t value) {
    return value == RLIM_INFINITY ? std::string("unlimited") : std::to_string(value);
  };
  return word(limits.rlim_cur) + ", hard limit " + word(limits.rlim_max);
}

}  // namespace

Facts system_facts(const HostFacts& host) {
  return {{"Platform", platform()},
          {"glibc", ::gnu_get_libc_version()},
          {"acclaunch path", (host.executable_directory / "acclaunch").string()},
          {"System RAM", memory()},
          {"Cores", cores(host)},
          {"NUMA nodes", numa(host)},
          {"/dev/shm", shared_memory()},
          {"Open files (nofile)", limit(RLIMIT_NOFILE)},
          {"Locked memory (memlock, bytes)", limit(RLIMIT_MEMLOCK)}};
}

}  // namespace acc::launcher::commands
