// SPDX-License-Identifier: Apache-2.0
#include "cuda/nccl/nccl_api.hpp"

#include "acc/base/error.hpp"
#include "acc/base/library_search.hpp"
#include "collectives/device_route.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

namespace acc::cuda {
namespace {

struct Loaded {
  NcclApi api;
  bool usable = false;
  std::string problem;
};

/// Looks up one function. Adds the name of a missing one to `missing`, which is null for optional
/// functions.
template <typename Function>
void bind(void* library, const char* name, Function& function, std::string* missing = nullptr) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr && missing != nullptr) {
    *missing += missing->empty() ? name : fmt::format(", {}", name);
  }
}

/// Looks up all functions. Returns the names of required functions that are missing.
std::string bind_all(void* library, NcclApi& api) {
  std::string missing;
  bind(library, "ncclGetVersion", api.get_version, &missing);
  bind(library, "ncclGetErrorString", api.get_error_string, &missing);
  bind(library, "ncclGetLastError", api.get_last_error, &missing);
  bind(library, "ncclGetUniqueId", api.get_unique_id, &missing);
  bind(library, "ncclCommInitRankConfig", api.comm_init_rank_config, &missing);
  bind(library, "ncclCommSplit", api.comm_split, &missing);
  bind(library, "ncclCommGetAsyncError", api.comm_get_async_error, &missing);
  bind(library, "ncclCommFinalize", api.comm_finalize, &missing);
  bind(library, "ncclCommDestroy", api.comm_destroy, &missing);
  bind(library, "ncclCommAbort", api.comm_abort, &missing);
  bind(library, "ncclAllGather", api.all_gather, &missing);
  bind(library, "ncclReduceScatter", api.reduce_scatter, &missing);
  bind(library, "ncclAllReduce", api.all_reduce, &missing);
  bind(library, "ncclBroadcast", api.broadcast, &missing);
  bind(library, "ncclMemAlloc", api.mem_alloc);
  bind(library, "ncclMemFree", api.mem_free);
  bind(library, "ncclCommRegister", api.comm_register);
  bind(library, "ncclCommDeregister", api.comm_deregister);
  bind(library, "ncclCommWindowRegister", api.comm_window_register);
  bind(library, "ncclCommWindowDeregister", api.comm_window_deregister);
  return missing;
}

/// Path of this library, next to which NCCL is searched too.
std::string own_path() {
  Dl_info info{};
  return ::dladdr(reinterpret_cast<void*>(&own_path), &info) != 0 ? info.dli_fname : "";
}

Loaded load() {
  Loaded loaded;
  OpenedLibrary library{};
  try {
    library = open_library(nccl_library_search(), own_path());
  } catch (const Error& error) {
    loaded.problem = error.what();
    return loaded;
  }
  NcclApi& api = loaded.api;
  api.path = library.path;
  const std::string missing = bind_all(library.handle, api);
  if (api.get_version == nullptr || api.get_version(&api.version) != ncclSuccess) {
    loaded.problem = fmt::format("{} is not an NCCL library", api.path);
  } else if (api.version < collectives::kMinNcclVersion || !missing.empty()) {
    loaded.problem = fmt::format("{} is NCCL {}, at least {} is needed{}", api.path,
                                 collectives::nccl_version_text(api.version),
                                 collectives::nccl_version_text(collectives::kMinNcclVersion),
                                 missing.empty() ? "" : fmt::format(" (missing: {})", missing));
  } else {
    loaded.usable = true;
  }
  return loaded;
}

// Opened once. A failed search is not repeated, so that all ranks keep the route that they have
// agreed on.
const Loaded& loaded() {
  static const Loaded once = load();
  return once;
}

}  // namespace

const NcclApi* nccl_api() {
  return loaded().usable ? &loaded().api : nullptr;
}

int nccl_version() {
  return loaded().api.version;
}

std::string nccl_problem() {
  return loaded().problem;
}

}  // namespace acc::cuda
