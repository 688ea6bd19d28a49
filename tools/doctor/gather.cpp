// SPDX-License-Identifier: Apache-2.0
#include "doctor/gather.hpp"

#include "acc/base/error.hpp"
#include "acc/base/library_search.hpp"
#include "acc/base/machine.hpp"
#include "acc/base/unique_fd.hpp"
#include "acc/base/variables.hpp"
#include "doctor/probe.hpp"

#include <dlfcn.h>
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

namespace acc::doctor {
namespace {

namespace fs = std::filesystem;

/// First line of a file; empty if it cannot be read.
std::string first_line(const fs::path& path) {
  std::string line;
  std::getline(std::ifstream(path), line);
  return line;
}

void gather_names(MachineFacts& facts) {
  facts.host = host_name();
  facts.boot_id = first_line("/proc/sys/kernel/random/boot_id");
  utsname system{};
  ::uname(&system);
  facts.kernel = system.release;
  facts.architecture = system.machine;
  facts.acclaunch_version = ACC_VERSION;
  facts.name_resolves_to = resolve({facts.host}, std::chrono::seconds(5))[facts.host].addresses;
}

// NCCL encodes 2.28.3 as 22803; CUDA encodes 12.8 as 12080. Both libraries are opened here, not
// linked, because they may be missing.
std::string nccl_version() {
  try {
    std::error_code none;
    const auto library =
        open_library(nccl_library_search(), fs::read_symlink("/proc/self/exe", none));
    const auto ask = reinterpret_cast<int (*)(int*)>(::dlsym(library.handle, "ncclGetVersion"));
    int version = 0;
    if (ask != nullptr && ask(&version) == 0) {
      return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
             std::to_string(version % 100);
    }
  } catch (const Error&) {  // NCCL is not installed here
  }
  return {};
}

std::string cuda_version() {
  void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) {
    return {};
  }
  const auto ask = reinterpret_cast<int (*)(int*)>(::dlsym(driver, "cuDriverGetVersion"));
  int version = 0;
  return ask != nullptr && ask(&version) == 0
             ? std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10)
             : std::string();
}

/// Link speed in Mbit/s as the driver reports it (ETHTOOL_GSET).
std::optional<int> speed_of(int socket, ifreq request) {
  constexpr std::uint16_t kUnknown = 0xffff;
  ethtool_cmd command{};
  command.cmd = ETHTOOL_GSET;
  request.ifr_data = reinterpret_cast<char*>(&command);
  if (::ioctl(socket, SIOCETHTOOL, &request) != 0 || command.speed == kUnknown ||
      command.speed == 0) {
    return std::nullopt;
  }
  return static_cast<int>(command.speed | static_cast<unsigned>(command.speed_hi) << 16);
}

/// Lists the interfaces that are up, without the loopback.
void gather_interfaces(MachineFacts& facts) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) {
    return;
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, ::freeifaddrs);
  const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    const int family = each->ifa_addr == nullptr ? AF_UNSPEC : each->ifa_addr->sa_family;
    if ((family != AF_INET && family != AF_INET6) || (each->ifa_flags & IFF_UP) == 0 ||
        (each->ifa_flags & IFF_LOOPBACK) != 0) {
      continue;
    }
    auto known = std::ranges::find(facts.interfaces, std::string(each->ifa_name), &Interface::name);
    if (known == facts.interfaces.end()) {
      ifreq request{};
      std::strncpy(request.ifr_name, each->ifa_name, IFNAMSIZ - 1);
      Interface interface {
        .name = each->ifa_name, .addresses = {}
      };
      interface.speed_mbps = speed_of(socket.get(), request);
      interface.mtu = ::ioctl(socket.get(), SIOCGIFMTU, &request) == 0 ? request.ifr_mtu : 0;
      known = facts.interfaces.insert(facts.interfaces.end(), std::move(interface));
    }
    std::array<char, NI_MAXHOST> text{};
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (::getnameinfo(each->ifa_addr, length, text.data(), text.size(), nullptr, 0,
                      NI_NUMERICHOST) == 0) {
      known->addresses.emplace_back(text.data());
    }
  }
}

/// Range from which the kernel chooses ports for listeners without a fixed port.
void gather_ports(MachineFacts& facts) {
  std::istringstream range(first_line("/proc/sys/net/ipv4/ip_local_port_range"));
  if (!(range >> facts.port_low >> facts.port_high)) {
    facts.port_low = 32768;  // Linux's default
    facts.port_high = 60999;
  }
}

void gather_memory(MachineFacts& facts) {
  const MachineMemory memory = machine_memory();
  facts.memory_total = memory.total;
  facts.memory_available = memory.available;
  facts.memory_limit = memory.limit.value_or(kUnlimited);
  struct statvfs place {};
  if (::statvfs("/dev/shm", &place) == 0) {
    const auto block = static_cast<std::int64_t>(place.f_frsize);
    facts.shm_total = block * static_cast<std::int64_t>(place.f_blocks);
    facts.shm_free = block * static_cast<std::int64_t>(place.f_bavail);
  }
}

void gather_cpus(MachineFacts& facts) {
  facts.cpus = usable_cores();
  // "cpu.max" (cgroup version 2) has quota and period in microseconds, or "max" without a limit.
  fs::path group = control_group("cpu");
  for (; group.string().starts_with("/sys/fs/cgroup"); group = group.parent_path()) {
    std::istringstream line(first_line(group / "cpu.max"));
    double quota = 0, period = 0;
    if (line >> quota >> period && period > 0) {
      facts.cpu_quota = std::min(facts.cpu_quota.value_or(quota / period), quota / period);
    }
  }
}

std::int64_t soft_limit(int resource) {
  rlimit limits{};
  ::getrlimit(static_cast<__rlimit_resource_t>(resource), &limits);
  return limits.rlim_cur == RLIM_INFINITY ? kUnlimited : static_cast<std::int64_t>(limits.rlim_cur);
}

}  // namespace

void gather(MachineFacts& facts) {
  gather_names(facts);
  gather_interfaces(facts);
  gather_ports(facts);
  gather_memory(facts);
  gather_cpus(facts);
  facts.cuda_version = cuda_version();
  facts.nccl_version = nccl_version();
  facts.visible_devices = process_variable("NVIDIA_VISIBLE_DEVICES").value_or("");
  facts.nofile = soft_limit(RLIMIT_NOFILE);
  facts.memlock = soft_limit(RLIMIT_MEMLOCK);
  facts.nproc = soft_limit(RLIMIT_NPROC);
  std::error_code none;
  facts.has_infiniband =
      fs::exists("/sys/class/infiniband", none) && !fs::is_empty("/sys/class/infiniband", none);
}

}  // namespace acc::doctor
