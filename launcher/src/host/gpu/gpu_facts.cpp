// SPDX-License-Identifier: Apache-2.0
#include "acc/launcher/gpu_facts.hpp"

#include "acc/settings/settings.hpp"
#include "host/gpu/ask_driver.hpp"

#include <algorithm>
#include <utility>

namespace acc::launcher {
namespace {

/// True if the GPU or one of its MIG devices has a UUID that begins so.
bool has_uuid(const Gpu& gpu, std::string_view beginning) {
  const auto begins = [beginning](const std::string& uuid) { return uuid.starts_with(beginning); };
  // The older name of a MIG device, MIG-GPU-UUID/INSTANCE/INSTANCE, contains that of its GPU.
  constexpr std::string_view kOldPartition = "MIG-";
  const bool old_name = beginning.starts_with("MIG-GPU-") && !gpu.uuid.empty() &&
                        beginning.substr(kOldPartition.size()).starts_with(gpu.uuid);
  return begins(gpu.uuid) || old_name || std::ranges::any_of(gpu.partitions, begins);
}

}  // namespace

GpuFacts detect_gpus(const std::filesystem::path& sys, const std::filesystem::path& proc) {
  auto facts = host::ask_nvml();
  if (!facts) {
    facts = host::ask_cuda_driver();
  }
  if (!facts) {
    facts = host::ask_kernel_module(proc);
  }
  for (Gpu& gpu : facts->devices) {
    const int node = host::numa_node_of(sys, gpu.pci_id);
    gpu.numa_node = node >= 0 ? node : gpu.numa_node;
  }
  return *std::move(facts);
}

GpuFacts simulated_gpus(int count, const std::vector<int>& numa_nodes) {
  GpuFacts facts;
  for (int i = 0; i < count; ++i) {
    std::string number = std::to_string(i);
    number.insert(0, 12 - number.size(), '0');
    Gpu& gpu = facts.devices.emplace_back();
    gpu.name = "simulated";
    gpu.uuid = "GPU-00000000-0000-0000-0000-" + number;
    const std::size_t share = numa_nodes.size() * static_cast<std::size_t>(i);
    gpu.numa_node = numa_nodes[share / static_cast<std::size_t>(count)];
  }
  return facts;
}

std::optional<int> find_gpu(std::string_view entry, const std::vector<Gpu>& devices) {
  while (entry.starts_with(' ')) {
    entry.remove_prefix(1);
  }
  const auto count = static_cast<int>(devices.size());
  if (!entry.starts_with("GPU-") && !entry.starts_with("MIG-")) {
    const auto number = parse_integer(entry);
    return number && *number >= 0 && *number < count ? std::optional(static_cast<int>(*number))
                                                     : std::nullopt;
  }
  const auto named = [entry](const Gpu& gpu) { return has_uuid(gpu, entry); };
  const auto found = std::ranges::find_if(devices, named);
  if (std::ranges::count_if(devices, named) != 1) {
    return std::nullopt;
  }
  return static_cast<int>(found - devices.begin());
}

std::vector<int> visible_gpus(std::string_view list, const std::vector<Gpu>& devices) {
  std::vector<int> visible;
  for (const std::string_view entry : split(list, ',')) {
    const auto device = find_gpu(entry, devices);
    if (!device) {
      break;
    }
    if (std::ranges::find(visible, *device) != visible.end()) {
      // Two MIG devices of one GPU are no repetition: CUDA shows a program only the first of them.
      return entry.starts_with("MIG-") ? visible : std::vector<int>{};
    }
    visible.push_back(*device);
  }
  return visible;
}

}  // namespace acc::launcher
