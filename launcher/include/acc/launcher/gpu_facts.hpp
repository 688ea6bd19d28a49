// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher {

/// A GPU as the driver reports it. Fields that the driver does not report are empty, or -1.
struct Gpu {
  std::string name;                     ///< "NVIDIA H200"
  std::string uuid;                     ///< "GPU-8f3a…"
  std::vector<std::string> partitions;  ///< UUIDs of its MIG devices, "MIG-…"
  std::string pci_id;                   ///< as sysfs writes it, "0000:1b:00.0"
  int numa_node = -1;                   ///< NUMA node with the nearest memory and cores
};

/// All GPUs of this machine in the driver's order, which is that of their PCI addresses.
/// CUDA_VISIBLE_DEVICES is ignored here.
struct GpuFacts {
  std::vector<Gpu> devices;
  std::string driver_version;  ///< "580.65.06"; empty: no driver
};

/// Queries the management library (NVML); if that is missing, the CUDA driver; else /proc. The
/// libraries are loaded with dlopen, so acclaunch does not link to them. `sys` and `proc` are the
/// mount points of those file systems. Does not throw: without a driver there are no devices.
GpuFacts detect_gpus(const std::filesystem::path& sys = "/sys",
                     const std::filesystem::path& proc = "/proc");

/// Returns `count` simulated GPUs, named "simulated", with distinct UUIDs, spread evenly over
/// `numa_nodes`. The machine need not have any GPU.
GpuFacts simulated_gpus(int count, const std::vector<int>& numa_nodes);

/// Returns the index of the device that one entry of a device list names: a number, a UUID, or a
/// prefix that only one UUID has. Empty if the entry names no device.
std::optional<int> find_gpu(std::string_view entry, const std::vector<Gpu>& devices);

/// Returns the devices that a CUDA_VISIBLE_DEVICES value selects, in its order, by CUDA's rules:
/// the list ends before the first entry that names no device, and a device that is named twice
/// makes the whole list empty.
std::vector<int> visible_gpus(std::string_view list, const std::vector<Gpu>& devices);

}  // namespace acc::launcher
