#pragma once

#include <nccl.h>

#include <string>

namespace acc::cuda {

/// NCCL's functions, from a library that is opened at run time. Those that came after 2.18 are null
/// in older versions.
struct NcclApi {
  int version = 0;   ///< 10000 * major + 100 * minor + patch
  std::string path;  ///< of the library

  decltype(&::ncclGetVersion) get_version = nullptr;
  decltype(&::ncclGetErrorString) get_error_string = nullptr;
  decltype(&::ncclGetLastError) get_last_error = nullptr;
  decltype(&::ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&::ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&::ncclCommSplit) comm_split = nullptr;
  decltype(&::ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&::ncclCommFinalize) comm_finalize = nullptr;
  decltype(&::ncclCommDestroy) comm_destroy = nullptr;
  decltype(&::ncclCommAbort) comm_abort = nullptr;
  decltype(&::ncclAllGather) all_gather = nullptr;
  decltype(&::ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&::ncclAllReduce) all_reduce = nullptr;
  decltype(&::ncclBroadcast) broadcast = nullptr;

  // 2.19
  ncclResult_t (*mem_alloc)(void**, size_t) = nullptr;
  ncclResult_t (*mem_free)(void*) = nullptr;
  ncclResult_t (*comm_register)(ncclComm_t, void*, size_t, void**) = nullptr;
  ncclResult_t (*comm_deregister)(ncclComm_t, void*) = nullptr;
  // 2.27; a window's handle is opaque
  ncclResult_t (*comm_window_register)(ncclComm_t, void*, size_t, void**, int) = nullptr;
  ncclResult_t (*comm_window_deregister)(ncclComm_t, void*) = nullptr;
};

/// The process's NCCL, opened at the first call. Null where there is none or it is too old. Any
/// thread.
const NcclApi* nccl_api();
/// Its version, also of one that is too old; 0: none found.
int nccl_version();
/// What was tried, where `nccl_api` is null.
std::string nccl_problem();

}  // namespace acc::cuda
