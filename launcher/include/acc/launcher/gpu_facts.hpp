#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher {

/// A GPU as the driver shows it. What the driver does not tell is empty, or -1.
struct Gpu {
  std::string name;                     ///< "NVIDIA H200"
  std::string uuid;                     ///< "GPU-8f3a…"
  std::vector<std::string> partitions;  ///< UUIDs of its MIG devices, "MIG-…"
  std::string pci_id;                   ///< as sysfs writes it, "0000:1b:00.0"
  int numa_node = -1;                   ///< whose memory and cores are nearest
};

/// All GPUs of this machine, whatever CUDA_VISIBLE_DEVICES says, in the driver's order, which is
/// that of their PCI addresses.
struct GpuFacts {
  std::vector<Gpu> devices;
  std::string driver_version;  ///< "580.65.06"; empty: there is no driver
};

/// Asks the management library (NVML), else the CUDA driver, else /proc; none of them is linked.
/// `sys` and `proc` are where those file systems are mounted. Does not throw: no driver, no GPU.
GpuFacts detect_gpus(const std::filesystem::path& sys = "/sys",
                     const std::filesystem::path& proc = "/proc");

/// GPUs that need not exist: named "simulated", each with a UUID of its own, spread over the nodes.
GpuFacts simulated_gpus(int count, const std::vector<int>& numa_nodes);

/// Which device one entry of a list names: a number, a UUID, or a beginning of a UUID that only one
/// has.
std::optional<int> find_gpu(std::string_view entry, const std::vector<Gpu>& devices);

/// The devices that a CUDA_VISIBLE_DEVICES text leaves, in its order. As CUDA reads it: what comes
/// after the first entry that names no device does not count, a device named twice voids the list.
std::vector<int> visible_gpus(std::string_view list, const std::vector<Gpu>& devices);

}  // namespace acc::launcher
