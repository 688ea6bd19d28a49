// SPDX-License-Identifier: Apache-2.0
#include "acc/base/machine.hpp"

#include "acc/base/text.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>

namespace acc {
namespace {

namespace fs = std::filesystem;

/// Value of a key of /proc/meminfo, in bytes; 0 if it is missing.
std::int64_t meminfo(const std::string& key) {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  for (std::int64_t value = 0; file >> name >> value; std::getline(file, unit)) {
    if (name == key + ":") {
      return value * 1024;
    }
  }
  return 0;
}

std::optional<std::int64_t> number_in(const fs::path& path) {
  std::int64_t value = 0;
  std::ifstream file(path);
  return file >> value ? std::optional(value) : std::nullopt;
}

}  // namespace

// The call fails where the kernel knows more cores than a cpu_set_t has bits.
std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return printable(name.data());
}

int usable_cores() noexcept {
  cpu_set_t set;
  CPU_ZERO(&set);
  const bool known = ::sched_getaffinity(0, sizeof(set), &set) == 0;
  return std::max(1, known ? CPU_COUNT(&set) : static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)));
}

MachineMemory machine_memory() {
  MachineMemory memory{
      .total = meminfo("MemTotal"), .available = meminfo("MemAvailable"), .limit = std::nullopt};
  fs::path group = control_group("memory");
  for (; group.string().starts_with("/sys/fs/cgroup"); group = group.parent_path()) {
    const auto [limit, used] = memory_of_group(group);
    if (limit && *limit < memory.total) {
      memory.limit = std::min(memory.limit.value_or(*limit), *limit);
      memory.available = std::clamp<std::int64_t>(*limit - used, 0, memory.available);
    }
  }
  return memory;
}

// Lines of /proc/self/cgroup are "ID:CONTROLLERS:PATH"; the one of cgroup version 2 has no
// controllers.
fs::path control_group(const std::string& controller) {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    const std::string names = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (names.empty()) {
      return "/sys/fs/cgroup" + path;
    }
    if (fmt::format(",{},", names).find(fmt::format(",{},", controller)) != std::string::npos) {
      return fmt::format("/sys/fs/cgroup/{}{}", controller, path);
    }
  }
  return "/sys/fs/cgroup";
}

// In version 1 "no limit" is a huge number, and only the "total_" values include the groups below.
GroupMemory memory_of_group(const fs::path& group) {
  const bool is_version_1 = fs::exists(group / "memory.limit_in_bytes");
  const std::string prefix = is_version_1 ? "total_" : "";
  GroupMemory memory{
      .limit = number_in(group / (is_version_1 ? "memory.limit_in_bytes" : "memory.max")),
      .used = number_in(group / (is_version_1 ? "memory.usage_in_bytes" : "memory.current"))
                  .value_or(0)};
  std::ifstream stat(group / "memory.stat");
  std::string key;
  for (std::int64_t value = 0; stat >> key >> value;) {
    if (key == prefix + "inactive_file" || key == prefix + "active_file") {
      memory.used -= value;
    }
  }
  return memory;
}

}  // namespace acc
