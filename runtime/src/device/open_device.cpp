// SPDX-License-Identifier: Apache-2.0
#include "device/open_device.hpp"

#include "acc/base/error.hpp"
#include "acc/base/part_path.hpp"
#include "acc/base/variables.hpp"
#include "device/cpu_device.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>

namespace acc::device {
namespace {

constexpr const char* kLibrary = "libacc_cuda.so";

Backend& load_backend() {
  const auto named = process_variable("ACC_CUDA_BACKEND");  // for tests
  const std::string path = named ? *named : part_path(kLibrary);
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw Error(
        Errc::device,
        fmt::format("device cuda: cannot load {} ({}): this build has no CUDA support; build "
                    "with the preset cuda, or use --cpu",
                    kLibrary, dlerror()));
  }
  // The version is checked before any virtual call, because the layout of Backend may differ.
  const auto entry = reinterpret_cast<BackendEntry>(dlsym(library, kBackendEntry));
  Backend* const backend = entry == nullptr ? nullptr : entry(kBackendVersion);
  if (backend == nullptr) {
    throw Error(Errc::device,
                fmt::format("device cuda: {} has a different version than the runtime "
                            "that loads it: install both from one build",
                            path));
  }
  return *backend;
}

// Index of this worker's GPU among those that it sees.
int choose_gpu(const settings::RuntimeSettings& settings, int count) {
  const auto& identity = settings.identity;
  if (settings.share_gpus) {
    return identity.local_rank % count;
  }
  if (std::max(identity.local_world_size, identity.local_rank + 1) > count) {
    throw Error(Errc::device,
                fmt::format("device cuda: {} workers on this machine, but GPUs: {}: start fewer "
                            "workers, or let them share GPUs with ACC_SHARE_GPUS=1",
                            identity.local_world_size, count));
  }
  return identity.local_rank;
}

}  // namespace

Opened open_device(const settings::RuntimeSettings& settings) {
  if (settings.device == settings::Device::cpu) {
    return {.device = open_cpu_device()};
  }
  // Loaded once and never unloaded: memory and streams of the library may outlive every runtime.
  static Backend& backend = load_backend();
  const int index = choose_gpu(settings, backend.device_count());
  return {.device = backend.open(index), .backend = &backend};
}

}  // namespace acc::device
