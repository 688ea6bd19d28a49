// SPDX-License-Identifier: Apache-2.0
// Findings about single machines, and about differences between machines.
#include "doctor/findings.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>

// Each kind of problem gives one finding for all affected machines, so that a cluster of equal
// machines with the same problem is reported in one line.
namespace acc::doctor {
namespace {

double gib(std::int64_t nbytes) {
  return static_cast<double>(nbytes) / static_cast<double>(std::int64_t{1} << 30);
}

bool is_below(std::int64_t limit, std::int64_t wanted) {
  return limit != kUnlimited && limit < wanted;
}

/// Adds one finding for all machines that `is_affected` selects. Its text has the words of each of
/// them.
using IsAffected = std::function<bool(const MachineFacts&)>;
using Words = std::function<std::string(const MachineFacts&)>;

void add_for_all(std::vector<Finding>& to, const Examination& examination, Severity severity,
                 std::string_view kind, std::string_view remedy, const IsAffected& is_affected,
                 const Words& words) {
  Finding finding{severity, std::string(kind), {}, "", std::string(remedy)};
  for (const auto& machine : examination.machines) {
    if (machine && is_affected(*machine)) {
      finding.machines.push_back(machine->machine);
      finding.what += (finding.what.empty() ? "" : "; ") + name_of(examination, machine->machine) +
                      ": " + words(*machine);
    }
  }
  if (!finding.machines.empty()) {
    to.push_back(std::move(finding));
  }
}

void add_memory(std::vector<Finding>& to, const Examination& examination) {
  add_for_all(
      to, examination, Severity::warning, "little_shm",
      "Enlarge /dev/shm: docker run --shm-size=16g or --ipc=host; in a pod, an emptyDir of "
      "medium Memory at /dev/shm; else mount -o remount,size=50% /dev/shm. Files that ended jobs "
      "left there can be removed.",
      [](const MachineFacts& each) { return each.shm_free < kLittleShm; },
      [](const MachineFacts& each) {
        return fmt::format("{:.2f} of {:.2f} GiB free in /dev/shm", gib(each.shm_free),
                           gib(each.shm_total));
      });
  add_for_all(
      to, examination, Severity::warning, "little_memory",
      "Stop other programs there, or request more memory from the job manager (Slurm: --mem, "
      "Kubernetes: resources.limits.memory); otherwise ranks run out of memory (OOM).",
      [](const MachineFacts& each) { return each.memory_available < kLittleMemory; },
      [](const MachineFacts& each) {
        return fmt::format(
            "{:.2f} of {:.2f} GiB of memory available", gib(each.memory_available),
            gib(each.memory_limit == kUnlimited ? each.memory_total : each.memory_limit));
      });
}

void add_limits(std::vector<Finding>& to, const Examination& examination) {
  add_for_all(
      to, examination, Severity::warning, "few_open_files",
      "Raise it before the start: ulimit -n 65536; for good: nofile in "
      "/etc/security/limits.conf, LimitNOFILE= of the unit of sshd, slurmd or the container "
      "runtime.",
      [](const MachineFacts& each) { return is_below(each.nofile, kFewOpenFiles); },
      [](const MachineFacts& each) {
        return fmt::format("at most {} open files per process", each.nofile);
      });
  add_for_all(
      to, examination, Severity::warning, "little_locked_memory",
      "InfiniBand needs to lock the memory that it reads: ulimit -l unlimited; for good: memlock "
      "in /etc/security/limits.conf, LimitMEMLOCK=infinity of the unit of slurmd, and "
      "PropagateResourceLimitsExcept=MEMLOCK in slurm.conf.",
      [](const MachineFacts& each) { return each.has_infiniband && each.memlock != kUnlimited; },
      [](const MachineFacts& each) {
        return fmt::format("at most {} bytes of locked memory", each.memlock);
      });
  add_for_all(
      to, examination, Severity::warning, "few_processes",
      "Raise it: ulimit -u 65536; for good: nproc in /etc/security/limits.conf, "
      "TasksMax= of the unit.",
      [](const MachineFacts& each) { return is_below(each.nproc, kFewProcesses); },
      [](const MachineFacts& each) {
        return fmt::format("at most {} processes and threads per user", each.nproc);
      });
}

/// True if a container was meant to have GPUs, as NVIDIA's container runtime reads the variable.
bool should_have_gpus(const MachineFacts& each) {
  return !each.visible_devices.empty() && each.visible_devices != "void" &&
         each.visible_devices != "none";
}

void add_missing_gpus(std::vector<Finding>& to, const Examination& examination) {
  add_for_all(
      to, examination, Severity::warning, "no_gpu_in_container",
      "Start the container with GPUs: docker run --gpus all, which needs NVIDIA's container "
      "toolkit on the host; in a pod, resources.limits of nvidia.com/gpu. For training on the "
      "CPU: NVIDIA_VISIBLE_DEVICES=void.",
      // Without GPUs it has no libcuda.so.1, but the driver's version is still in its /proc.
      [](const MachineFacts& each) {
        return should_have_gpus(each) && each.cuda_version.empty() && each.gpus.empty();
      },
      [](const MachineFacts& each) {
        return "no GPU and no libcuda.so.1, although NVIDIA_VISIBLE_DEVICES=" +
               each.visible_devices;
      });
}

/// True if some machine of the job is a different machine than `own`. Loopback addresses are
/// harmless otherwise.
bool has_other_hosts(const Examination& examination, const MachineFacts& own) {
  return std::ranges::any_of(
      examination.machines, [&](const auto& each) { return each && each->boot_id != own.boot_id; });
}

bool resolves_to_loopback(const MachineFacts& each) {
  return !each.name_resolves_to.empty() && std::ranges::all_of(each.name_resolves_to, is_loopback);
}

void add_names(std::vector<Finding>& to, const Examination& examination) {
  const auto others = [&](const MachineFacts& each) { return has_other_hosts(examination, each); };
  add_for_all(
      to, examination, Severity::error, "loopback_address",
      "Other machines cannot connect to it. Give --main_process_ip as an address or a name that "
      "is not a loopback address on any machine, or remove the machine's own name from the "
      "127.0.1.1 line of its /etc/hosts; GLOO_SOCKET_IFNAME selects an interface.",
      [&](const MachineFacts& each) { return others(each) && is_loopback(each.address); },
      [](const MachineFacts& each) { return "its collectives would listen on " + each.address; });
  add_for_all(
      to, examination, Severity::warning, "name_loopback",
      "If a program publishes this host name, other machines connect to themselves. Write the "
      "network address into /etc/hosts instead of 127.0.1.1, which Debian's installer put there.",
      [&](const MachineFacts& each) { return others(each) && resolves_to_loopback(each); },
      [](const MachineFacts& each) {
        return fmt::format("its own name resolves to {}", fmt::join(each.name_resolves_to, ", "));
      });
}

/// Reports machine ranks that run on the same machine (equal boot id), and different machines with
/// equal host names.
void add_same_names(std::vector<Finding>& to, const Examination& examination) {
  std::map<std::string, std::vector<int>> by_host, by_place;
  for (const auto& machine : examination.machines) {
    if (machine) {
      by_host[machine->host].push_back(machine->machine);
      by_place[machine->host + '\n' + machine->boot_id].push_back(machine->machine);
    }
  }
  for (const auto& [place, machines] : by_place) {
    if (machines.size() > 1) {
      const std::string host = place.substr(0, place.find('\n'));
      to.push_back(
          {Severity::note, "same_machine", machines,
           fmt::format("machines {} of the job are the same one: {}", fmt::join(machines, ", "),
                       host),
           "Fine for trials. Otherwise start one launcher per machine with more processes: they "
           "then share memory."});
    }
  }
  for (const auto& [host, machines] : by_host) {
    const auto& first = *examination.machines[static_cast<std::size_t>(machines.front())];
    if (by_place[host + '\n' + first.boot_id].size() != machines.size()) {
      to.push_back(
          {Severity::warning, "same_name", machines,
           fmt::format("machines {} all have the host name {}", fmt::join(machines, ", "), host),
           "Give each machine a different name (hostnamectl set-hostname): reports and "
           "NCCL distinguish machines by it."});
    }
  }
}

/// Adds a finding if the machines' values are not all equal. Its text lists the machines per value.
void add_difference(std::vector<Finding>& to, const Examination& examination, Severity severity,
                    const std::string& kind, const std::string& what, const std::string& remedy,
                    const Words& value_of) {
  std::map<std::string, std::vector<int>> by_value;
  std::vector<int> all;
  for (const auto& machine : examination.machines) {
    if (machine) {
      by_value[value_of(*machine)].push_back(machine->machine);
      all.push_back(machine->machine);
    }
  }
  if (by_value.size() < 2) {
    return;
  }
  std::string text = what + " differ";
  const char* separator = ": ";
  for (const auto& [value, machines] : by_value) {
    std::vector<std::string> names;
    for (const int machine : machines) {
      names.push_back(name_of(examination, machine));
    }
    text += fmt::format("{}{} on {}", separator, value.empty() ? "none" : value,
                        fmt::join(names, ", "));
    separator = "; ";
  }
  to.push_back({severity, kind, all, text, remedy});
}

std::string gpus_in_words(const MachineFacts& facts) {
  std::map<std::string, int> count;
  for (const std::string& name : facts.gpus) {
    ++count[name];
  }
  std::string text;
  for (const auto& [name, number] : count) {
    text += fmt::format("{}{} x {}", text.empty() ? "" : " and ", number, name);
  }
  return text;
}

std::string main_mtu(const MachineFacts& facts) {
  const Interface* interface = facts.main_interface();
  return interface == nullptr ? "unknown" : fmt::format("{} bytes", interface->mtu);
}

std::string main_speed(const MachineFacts& facts) {
  const Interface* interface = facts.main_interface();
  return interface == nullptr || !interface->speed_mbps
             ? "unknown"
             : fmt::format("{} Mbit/s", *interface->speed_mbps);
}

}  // namespace

std::vector<Finding> machine_findings(const Examination& examination) {
  std::vector<Finding> found;
  for (std::size_t machine = 0; machine < examination.machines.size(); ++machine) {
    if (!examination.machines[machine]) {
      found.push_back(
          {Severity::error,
           "no_facts",
           {static_cast<int>(machine)},
           fmt::format("machine {} joined, but did not report its facts in time (timeout)",
                       machine),
           "Look at its launcher's output and load; it may be frozen, or have lost the "
           "connection to the main process."});
    }
  }
  add_memory(found, examination);
  add_limits(found, examination);
  add_missing_gpus(found, examination);
  add_names(found, examination);
  add_same_names(found, examination);
  return found;
}

std::vector<Finding> difference_findings(const Examination& examination) {
  std::vector<Finding> found;
  const auto compare = [&](Severity severity, const std::string& kind, const std::string& what,
                           const std::string& remedy, const Words& value_of) {
    add_difference(found, examination, severity, kind, what, remedy, value_of);
  };
  compare(Severity::error, "acclaunch_versions", "Versions of acclaunch",
          "Install the same version on all machines, or start it from a shared folder.",
          [](const MachineFacts& each) { return each.acclaunch_version; });
  compare(Severity::error, "nccl_versions", "Versions of NCCL",
          "Use the same container or environment on all machines; ACC_NCCL_LIBRARY selects the "
          "library.",
          [](const MachineFacts& each) { return each.nccl_version; });
  compare(
      Severity::warning, "driver_versions", "Versions of the GPU driver",
      "Install the same driver on all machines, or request equal machines from the job manager.",
      [](const MachineFacts& each) { return each.driver_version; });
  compare(Severity::warning, "gpus", "GPUs",
          "Request equal machines from the job manager; if they differ on purpose, "
          "--num_local_processes sets the number of ranks of a machine.",
          gpus_in_words);
  compare(Severity::error, "architectures", "Processors",
          "Programs and libraries must be built for each; request equal machines from the job "
          "manager.",
          [](const MachineFacts& each) { return each.architecture; });
  compare(Severity::note, "kernels", "Kernels",
          "Nothing needs to be done; remember it if one machine behaves differently.",
          [](const MachineFacts& each) { return each.kernel; });
  compare(
      Severity::warning, "mtu", "Largest packets (MTU) of the interfaces",
      "Set the same on all machines and switches (ip link set IFACE mtu N): packets that are too "
      "large for one are dropped or split.",
      main_mtu);
  compare(
      Severity::warning, "interface_speed", "Speeds of the interfaces",
      "Look for a cable or port that negotiated a lower speed (ethtool IFACE), or for a machine "
      "that is reached over its management network; GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME "
      "select the interface.",
      main_speed);
  return found;
}

}  // namespace acc::doctor
