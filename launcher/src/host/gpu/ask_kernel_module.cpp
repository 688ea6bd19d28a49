// SPDX-License-Identifier: Apache-2.0
#include "host/gpu/ask_driver.hpp"

#include <algorithm>
#include <fstream>

namespace acc::launcher::host {

namespace fs = std::filesystem;

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
