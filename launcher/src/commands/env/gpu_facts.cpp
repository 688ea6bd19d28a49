// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/base/library_search.hpp"
#include "commands/env/facts.hpp"

#include <dlfcn.h>

namespace acc::launcher::commands {
namespace {

std::string indices(const std::vector<int>& numbers) {
  std::string text;
  for (const int number : numbers) {
    text += (text.empty() ? "" : ", ") + std::to_string(number);
  }
  return text.empty() ? "none" : text;
}

/// Returns the library's version. NCCL encodes 2.28.3 as 22803 (nccl.h, NCCL_VERSION).
std::string version_of(void* library) {
  using GetVersion = int (*)(int*);
  const auto get_version = reinterpret_cast<GetVersion>(::dlsym(library, "ncclGetVersion"));
  int version = 0;
  if (get_version == nullptr || get_version(&version) != 0) {
    return "unknown version";
  }
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

/// Loads NCCL from the place where the runtime would load it.
std::string nccl(const HostFacts& host) {
  try {
    const OpenedLibrary library =
        open_library(nccl_library_search(), host.executable_directory / "acclaunch");
    return version_of(library.handle) + " (" + library.path + ")";
  } catch (const Error&) {
    return "Not found";
  }
}

}  // namespace

Facts gpu_facts(const HostFacts& host) {
  const std::string& driver = host.gpu.driver_version;
  Facts facts = {{"NVIDIA driver", driver.empty() ? "Not found" : driver}};
  for (const Gpu& gpu : host.gpu.devices) {
    facts.emplace_back("GPU " + std::to_string(facts.size() - 1),
                       gpu.name + ", " + gpu.uuid + (gpu.pci_id.empty() ? "" : ", " + gpu.pci_id));
  }
  facts.emplace_back("Visible GPUs", indices(host.visible_gpus));
  facts.emplace_back("NCCL library", nccl(host));
  return facts;
}

}  // namespace acc::launcher::commands
