// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nccl.h>

#include <string>

namespace acc::cuda {

/// Functions of the NCCL library, which is opened at run time. Functions added after NCCL 2.18 are
/// null in versions that lack them.
struct NcclApi {
  int version = 0;   ///< 10000 * major + 100 * minor + patch
  std::string path;  ///< path of the library

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

  // Since NCCL 2.19:
  ncclResult_t (*mem_alloc)(void**, size_t) = nullptr;
  ncclResult_t (*mem_free)(void*) = nullptr;
  ncclResult_t (*comm_register)(ncclComm_t, void*, size_t, void**) = nullptr;
  ncclResult_t (*comm_deregister)(ncclComm_t, void*) = nullptr;
  // Since NCCL 2.27. The window's handle (ncclWindow_t) is declared as void*.
  ncclResult_t (*comm_window_register)(ncclComm_t, void*, size_t, void**, int) = nullptr;
  ncclResult_t (*comm_window_deregister)(ncclComm_t, void*) = nullptr;
};

/// The process's NCCL, opened at the first call. Null if it is not found or too old. Any thread.
const NcclApi* nccl_api();
/// Version of the NCCL that was found, even if it is too old; 0 if none was found.
int nccl_version();
/// The reason why `nccl_api` is null, with the places that were searched.
std::string nccl_problem();

}  // namespace acc::cuda
