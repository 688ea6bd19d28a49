#pragma once

#include "acc/launcher/gpu_facts.hpp"

#include <optional>

namespace acc::launcher {

/// By NVML, which needs no CUDA context and ignores CUDA_VISIBLE_DEVICES. Nothing: it is not there,
/// or finds no driver.
std::optional<GpuFacts> ask_nvml();

/// By the CUDA driver itself, for machines and sandboxes that lack NVML.
std::optional<GpuFacts> ask_cuda_driver();

/// By what the kernel module shows in `proc`, where programs find no library of the driver.
GpuFacts ask_kernel_module(const std::filesystem::path& proc);

/// What sysfs says of the device at `pci_id`; -1: nothing.
int numa_node_of(const std::filesystem::path& sys, const std::string& pci_id);

}  // namespace acc::launcher
