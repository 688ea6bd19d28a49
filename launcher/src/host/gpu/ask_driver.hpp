// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/launcher/gpu_facts.hpp"

#include <optional>

namespace acc::launcher::host {

/// Queries NVML, which needs no CUDA context and ignores CUDA_VISIBLE_DEVICES. Empty if the library
/// is missing or finds no driver.
std::optional<GpuFacts> ask_nvml();

/// Queries the CUDA driver, for machines and sandboxes without NVML. Empty if it is missing or
/// fails.
std::optional<GpuFacts> ask_cuda_driver();

/// Reads what the kernel module reports in /proc/driver/nvidia, for machines without the driver's
/// libraries. `proc` is where /proc is mounted.
GpuFacts ask_kernel_module(const std::filesystem::path& proc);

/// Returns the NUMA node of the PCI device at `pci_id` from sysfs; -1 if it is unknown.
int numa_node_of(const std::filesystem::path& sys, const std::string& pci_id);

}  // namespace acc::launcher::host
