// SPDX-License-Identifier: Apache-2.0
// Queries NVML and the CUDA driver through dlopen and dlsym. acclaunch must start on machines
// without a GPU, so it neither links to these libraries nor needs their headers; the few types are
// declared here. A missing function counts as a fact that the driver does not report.
#include "acc/base/variables.hpp"
#include "host/gpu/ask_driver.hpp"
#include "host/gpu/driver_library.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <fstream>

namespace acc::launcher::host {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kTextSize = 96;  // NVML_DEVICE_NAME_V2_BUFFER_SIZE, ..._UUID_V2_BUFFER_SIZE
using Text = std::array<char, kTextSize>;

/// Formats a PCI address as sysfs does: 0000:1b:00.0.
std::string pci_text(unsigned domain, unsigned bus, unsigned device) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%04x:%02x:%02x.0", domain, bus, device);
  return text.data();
}

/// Layout of nvmlPciInfo_t in NVML 9 and later.
struct NvmlPciInfo {
  std::array<char, 16> legacy_bus_id;
  unsigned domain, bus, device, device_id, subsystem_id;
  std::array<char, 32> bus_id;
};

using NvmlDevice = void*;

std::string nvml_uuid(const DriverLibrary& nvml, NvmlDevice device) {
  Text text{};
  const bool told =
      nvml.call("nvmlDeviceGetUUID", device, text.data(), static_cast<unsigned>(text.size()));
  return told ? text.data() : "";
}

/// Returns the UUIDs of a GPU's MIG devices.
std::vector<std::string> nvml_partitions(const DriverLibrary& nvml, NvmlDevice device) {
  std::vector<std::string> uuids;
  unsigned most = 0;
  if (!nvml.call("nvmlDeviceGetMaxMigDeviceCount", device, &most)) {
    return uuids;
  }
  for (unsigned i = 0; i < most; ++i) {
    NvmlDevice partition = nullptr;
    if (nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", device, i, &partition)) {
      uuids.push_back(nvml_uuid(nvml, partition));
    }
  }
  return uuids;
}

int nvml_numa_node(const DriverLibrary& nvml, NvmlDevice device) {
  std::array<unsigned long, 16> nodes{};  // bit set, one bit per node
  constexpr unsigned kNearestNode = 0;    // NVML_AFFINITY_SCOPE_NODE
  if (nvml.call("nvmlDeviceGetMemoryAffinity", device, static_cast<unsigned>(nodes.size()),
                nodes.data(), kNearestNode)) {
    for (std::size_t word = 0; word < nodes.size(); ++word) {
      if (nodes[word] != 0) {
        return static_cast<int>(word) * 64 + std::countr_zero(nodes[word]);
      }
    }
  }
  return -1;
}

Gpu nvml_gpu(const DriverLibrary& nvml, NvmlDevice device) {
  Gpu gpu;
  Text name{};
  if (nvml.call("nvmlDeviceGetName", device, name.data(), static_cast<unsigned>(name.size()))) {
    gpu.name = name.data();
  }
  gpu.uuid = nvml_uuid(nvml, device);
  gpu.partitions = nvml_partitions(nvml, device);
  NvmlPciInfo pci{};
  if (nvml.call("nvmlDeviceGetPciInfo_v3", device, &pci)) {
    gpu.pci_id = pci_text(pci.domain, pci.bus, pci.device);
  }
  gpu.numa_node = nvml_numa_node(nvml, device);
  return gpu;
}

/// Unsets CUDA_VISIBLE_DEVICES for its lifetime. The driver reads the variable in cuInit and would
/// hide the other devices.
class AllDevicesVisible {
 public:
  AllDevicesVisible() : list_(process_variable(kCudaVisibleVariable)) {
    ::unsetenv(kCudaVisibleVariable);
  }
  ~AllDevicesVisible() {
    if (list_) {
      ::setenv(kCudaVisibleVariable, list_->c_str(), 1);
    }
  }
  AllDevicesVisible(const AllDevicesVisible&) = delete;
  AllDevicesVisible& operator=(const AllDevicesVisible&) = delete;

 private:
  std::optional<std::string> list_;
};

/// Formats a UUID of 16 bytes as NVML does: GPU- and groups of 8-4-4-4-12 hexadecimal digits.
std::string uuid_text(const std::array<unsigned char, 16>& bytes) {
  std::string text = "GPU-";
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::array<char, 3> digits{};
    std::snprintf(digits.data(), digits.size(), "%02x", bytes[i]);
    text += (i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "") + std::string(digits.data());
  }
  return text;
}

Gpu cuda_gpu(const DriverLibrary& cuda, int device) {
  Gpu gpu;
  Text text{};
  const int size = static_cast<int>(text.size());
  if (cuda.call("cuDeviceGetName", text.data(), size, device)) {
    gpu.name = text.data();
  }
  std::array<unsigned char, 16> uuid{};
  if (cuda.call("cuDeviceGetUuid", uuid.data(), device)) {
    gpu.uuid = uuid_text(uuid);
  }
  unsigned domain = 0;
  unsigned bus = 0;
  unsigned slot = 0;
  if (cuda.call("cuDeviceGetPCIBusId", text.data(), size, device) &&
      std::sscanf(text.data(), "%x:%x:%x", &domain, &bus, &slot) == 3) {
    gpu.pci_id = pci_text(domain, bus, slot);
  }
  return gpu;
}

}  // namespace

std::optional<GpuFacts> ask_nvml() {
  const DriverLibrary nvml("libnvidia-ml.so.1");
  if (!nvml.call("nvmlInit_v2")) {
    return std::nullopt;
  }
  std::optional<GpuFacts> facts;
  unsigned count = 0;
  if (nvml.call("nvmlDeviceGetCount_v2", &count)) {
    facts.emplace();
    Text version{};
    nvml.call("nvmlSystemGetDriverVersion", version.data(), static_cast<unsigned>(version.size()));
    facts->driver_version = version.data();
    for (unsigned i = 0; i < count; ++i) {
      NvmlDevice device = nullptr;
      nvml.call("nvmlDeviceGetHandleByIndex_v2", i, &device);
      facts->devices.push_back(device == nullptr ? Gpu{} : nvml_gpu(nvml, device));
    }
  }
  nvml.call("nvmlShutdown");
  return facts;
}

std::optional<GpuFacts> ask_cuda_driver() {
  const AllDevicesVisible visible;
  const DriverLibrary cuda("libcuda.so.1");
  int count = 0;
  if (!cuda.call("cuInit", 0U) || !cuda.call("cuDeviceGetCount", &count)) {
    return std::nullopt;
  }
  GpuFacts facts;
  int supported = 0;
  // libcuda does not report the driver's own version, only the CUDA version that it supports.
  cuda.call("cuDriverGetVersion", &supported);
  facts.driver_version =
      "for CUDA " + std::to_string(supported / 1000) + "." + std::to_string(supported % 1000 / 10);
  for (int i = 0; i < count; ++i) {
    int device = 0;
    facts.devices.push_back(cuda.call("cuDeviceGet", &device, i) ? cuda_gpu(cuda, device) : Gpu{});
  }
  return facts;
}

namespace {

/// Returns a value of the "Name:   value" lines in /proc/driver/nvidia/gpus/ADDRESS/information.
std::string information_field(const fs::path& file, std::string_view name) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(name) && line.find_first_not_of(": \t", name.size()) != line.npos) {
      return line.substr(line.find_first_not_of(": \t", name.size()));
    }
  }
  return {};
}

/// Returns the first word that looks like a version, 580.65.06, in a file with lines such as
/// "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build …".
std::string kernel_module_version(const fs::path& file) {
  std::ifstream words(file);
  for (std::string word; words >> word;) {
    if (word.find_first_not_of("0123456789.") == word.npos && word.find('.') != word.npos) {
      return word;
    }
  }
  return {};
}

}  // namespace

GpuFacts ask_kernel_module(const fs::path& proc) {
  const fs::path folder = proc / "driver/nvidia";
  GpuFacts facts;
  facts.driver_version = kernel_module_version(folder / "version");
  std::error_code error;
  for (fs::directory_iterator it(folder / "gpus", error), end; !error && it != end;
       it.increment(error)) {
    Gpu& gpu = facts.devices.emplace_back();
    gpu.pci_id = it->path().filename().string();
    gpu.name = information_field(it->path() / "information", "Model");
    gpu.uuid = information_field(it->path() / "information", "GPU UUID");
  }
  std::ranges::sort(facts.devices, {}, &Gpu::pci_id);
  return facts;
}

int numa_node_of(const fs::path& sys, const std::string& pci_id) {
  int node = -1;
  if (!pci_id.empty()) {
    std::ifstream(sys / "bus/pci/devices" / pci_id / "numa_node") >> node;
  }
  return node;
}

}  // namespace acc::launcher::host
