// SPDX-License-Identifier: Apache-2.0
// The part of NCCL's interface that the runtime uses, on host memory. Misuse that makes the real
// NCCL hang or return wrong results ends the process with a message here.
#include "standin/nccl/communicator.hpp"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <thread>

using namespace standin::nccl;

namespace {

#define STANDIN_API extern "C" __attribute__((visibility("default")))

ncclComm& living(ncclComm_t comm, const char* function) {
  if (comm == nullptr || comm->dead) {
    die(std::string(function) + " on a communicator that is destroyed, aborted or null");
  }
  return *comm;
}

/// State in which a new call finds the communicator. It is invalid while the previous call is in
/// progress.
ncclResult_t begin(const ncclComm& comm) {
  if (comm.state == ncclInProgress) {
    last_error() = "Attempt to use communicator before the previous operation returned ncclSuccess";
    return ncclInvalidArgument;
  }
  return comm.state;
}

/// Starts work that NCCL does on a thread of its own.
void start(ncclComm& comm, int polls) {
  comm.state = ncclInProgress;
  comm.polls_left = polls;
}

/// Result of a call whose work has been started: ncclSuccess, also while the work is in progress.
ncclResult_t accepted(const ncclComm& comm) {
  return comm.state == ncclInProgress ? ncclSuccess : comm.state;
}

void finish_if_blocking(ncclComm& comm) {
  while (comm.options.blocking && comm.poll() == ncclInProgress) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

ncclResult_t collective(ncclComm_t handle, const char* function, const Call& call, const void* send,
                        void* receive, cudaStream_t stream) {
  ncclComm& comm = living(handle, function);
  const std::lock_guard lock(comm.mutex);
  const ncclResult_t state = begin(comm);
  return state == ncclSuccess ? comm.enqueue(call, send, receive, stream) : state;
}

/// First version with NCCL_CTA_POLICY_ZERO.
constexpr int kZeroCtaVersion = 22800;

ncclComm::Options options_of(const ncclConfig_t* config) {
  return config == nullptr
             ? ncclComm::Options{}
             : ncclComm::Options{.blocking = config->blocking != 0,
                                 .split_share = config->splitShare == 1,
                                 .zero_ctas = config->CTAPolicy == NCCL_CTA_POLICY_ZERO};
}

/// Older versions refuse the policy.
bool is_known(const ncclComm::Options& options) {
  return !options.zero_ctas || version() >= kZeroCtaVersion;
}

}  // namespace

STANDIN_API ncclResult_t ncclGetVersion(int* result) {
  *result = version();
  return ncclSuccess;
}

STANDIN_API const char* ncclGetErrorString(ncclResult_t result) {
  constexpr std::array<const char*, 8> kTexts = {
      "no error",         "unhandled cuda error", "unhandled system error", "internal error",
      "invalid argument", "invalid usage",        "remote process error",   "in progress"};
  return kTexts.at(static_cast<std::size_t>(result));
}

STANDIN_API const char* ncclGetLastError(ncclComm_t /*comm*/) {
  return last_error().c_str();
}

STANDIN_API ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::random_device random;
  *id = {};
  std::snprintf(id->internal, sizeof(id->internal), "/acc-standin-nccl-%d-%08x%08x", ::getpid(),
                random(), random());
  return ncclSuccess;
}

STANDIN_API ncclResult_t ncclCommInitRankConfig(ncclComm_t* result, int size, ncclUniqueId id,
                                                int rank, ncclConfig_t* config) {
  const ncclComm::Options options = options_of(config);
  if (size < 1 || size > kMaxRanks || rank < 0 || rank >= size || !is_known(options)) {
    return ncclInvalidArgument;
  }
  int gpu = 0;
  cudaGetDevice(&gpu);
  *result = new ncclComm(id.internal, rank, size, gpu, options);
  finish_if_blocking(**result);
  return (*result)->state;
}

STANDIN_API ncclResult_t ncclCommSplit(ncclComm_t handle, int color, int key, ncclComm_t* child,
                                       ncclConfig_t* config) {
  ncclComm& comm = living(handle, __func__);
  const std::lock_guard lock(comm.mutex);
  if (const ncclResult_t state = begin(comm); state != ncclSuccess) {
    return state;
  }
  *child = nullptr;
  RankPlace& own = comm.shared->place(comm.shared->rank);
  own.choices[comm.splits % kMaxSplits] = {color, key};
  own.splits = ++comm.splits;
  comm.split = {child, config == nullptr ? comm.options : options_of(config)};
  log(std::string("split ") + (comm.options.split_share ? "shared" : "own"));
  start(comm, 3);
  finish_if_blocking(comm);
  return accepted(comm);
}

STANDIN_API ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* state) {
  ncclComm& comm = living(handle, __func__);
  const std::lock_guard lock(comm.mutex);
  *state = comm.poll();
  return ncclSuccess;
}

STANDIN_API ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  ncclComm& comm = living(handle, __func__);
  const std::lock_guard lock(comm.mutex);
  if (const ncclResult_t state = begin(comm); state != ncclSuccess) {
    return state;
  }
  comm.finalizing = true;
  start(comm, 2);
  finish_if_blocking(comm);
  return comm.state;
}

STANDIN_API ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  ncclComm& comm = living(handle, __func__);
  const std::lock_guard lock(comm.mutex);
  if (!comm.finalizing || comm.state != ncclSuccess) {
    die("ncclCommDestroy before ncclCommFinalize was done");
  }
  comm.dead = true;  // the handle is kept, to detect later uses
  return ncclSuccess;
}

STANDIN_API ncclResult_t ncclCommAbort(ncclComm_t handle) {
  ncclComm& comm = living(handle, __func__);
  {
    const std::lock_guard lock(comm.mutex);
    comm.shared->aborted = true;
    comm.shared->board.forget_name();
    comm.dead = true;
  }
  // The real NCCL frees GPU memory here, which waits for everything that runs on the GPU.
  cudaSetDevice(comm.device);
  cudaDeviceSynchronize();
  return ncclSuccess;
}

STANDIN_API ncclResult_t ncclAllGather(const void* send, void* receive, size_t count,
                                       ncclDataType_t dtype, ncclComm_t comm, cudaStream_t stream) {
  return collective(comm, __func__, {.kind = Kind::all_gather, .dtype = dtype, .count = count},
                    send, receive, stream);
}

STANDIN_API ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count,
                                           ncclDataType_t dtype, ncclRedOp_t op, ncclComm_t comm,
                                           cudaStream_t stream) {
  return collective(
      comm, __func__,
      {.kind = Kind::reduce_scatter, .dtype = dtype, .op = static_cast<int>(op), .count = count},
      send, receive, stream);
}

STANDIN_API ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count,
                                       ncclDataType_t dtype, ncclRedOp_t op, ncclComm_t comm,
                                       cudaStream_t stream) {
  return collective(
      comm, __func__,
      {.kind = Kind::all_reduce, .dtype = dtype, .op = static_cast<int>(op), .count = count}, send,
      receive, stream);
}

STANDIN_API ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count,
                                       ncclDataType_t dtype, int root, ncclComm_t comm,
                                       cudaStream_t stream) {
  return collective(comm, __func__,
                    {.kind = Kind::broadcast, .dtype = dtype, .root = root, .count = count}, send,
                    receive, stream);
}

#ifndef ACC_STANDIN_NCCL_OLD

namespace {

constexpr int kQuietRegistrationVersion = 22800;

struct Allocations {
  std::mutex mutex;
  struct Allocation {
    void* whole;
    std::size_t nbytes;
  };
  std::map<std::byte*, Allocation> made;
};

Allocations& allocations() {
  static Allocations all;
  return all;
}

bool is_of_mem_alloc(const std::byte* memory, std::size_t nbytes) {
  const std::lock_guard lock(allocations().mutex);
  return std::ranges::any_of(allocations().made, [&](const auto& each) {
    return memory >= each.first && memory + nbytes <= each.first + each.second.nbytes;
  });
}

ncclResult_t forget(ncclComm_t handle, const char* function, void* memory) {
  ncclComm& comm = living(handle, function);
  const std::lock_guard lock(comm.mutex);
  const auto found = comm.registered.find(static_cast<std::byte*>(memory));
  if (found == comm.registered.end()) {
    return ncclInvalidArgument;
  }
  comm.registered.erase(found);
  return ncclSuccess;
}

}  // namespace

// Multiples of the granularity of cuMemCreate, with the alignment that windows require and
// cudaMalloc does not guarantee.
STANDIN_API ncclResult_t ncclMemAlloc(void** memory, size_t nbytes) {
  constexpr std::size_t kGranularity = std::size_t{2} << 20;
  const std::size_t taken = (nbytes + kGranularity - 1) / kGranularity * kGranularity;
  void* whole = nullptr;
  if (cudaMalloc(&whole, taken + NCCL_WIN_REQUIRED_ALIGNMENT) != cudaSuccess) {
    return ncclUnhandledCudaError;
  }
  const auto address = reinterpret_cast<std::uintptr_t>(whole) + NCCL_WIN_REQUIRED_ALIGNMENT - 1;
  *memory =
      reinterpret_cast<void*>(address / NCCL_WIN_REQUIRED_ALIGNMENT * NCCL_WIN_REQUIRED_ALIGNMENT);
  const std::lock_guard lock(allocations().mutex);
  allocations().made[static_cast<std::byte*>(*memory)] = {whole, taken};
  return ncclSuccess;
}

STANDIN_API ncclResult_t ncclMemFree(void* memory) {
  const std::lock_guard lock(allocations().mutex);
  const auto found = allocations().made.extract(static_cast<std::byte*>(memory));
  if (found.empty()) {
    die("ncclMemFree of what ncclMemAlloc did not give");
  }
  return cudaFree(found.mapped().whole) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

STANDIN_API ncclResult_t ncclCommRegister(const ncclComm_t communicator, void* memory,
                                          size_t nbytes, void** handle) {
  // Like the real one, it does not look at the communicator's state.
  ncclComm& comm = living(communicator, __func__);
  const std::lock_guard lock(comm.mutex);
  comm.add(static_cast<std::byte*>(memory), {nbytes, 0});
  *handle = memory;
  return ncclSuccess;
}

STANDIN_API ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  return forget(comm, __func__, handle);
}

// Collective. Until NCCL 2.27 it returned ncclInProgress.
STANDIN_API ncclResult_t ncclCommWindowRegister(ncclComm_t handle, void* memory, size_t nbytes,
                                                ncclWindow_t* window, int flags) {
  if (nbytes % NCCL_WIN_REQUIRED_ALIGNMENT != 0 ||
      reinterpret_cast<std::uintptr_t>(memory) % NCCL_WIN_REQUIRED_ALIGNMENT != 0) {
    die("a window that is not aligned to 4096 bytes");
  }
  if (!is_of_mem_alloc(static_cast<std::byte*>(memory), nbytes)) {
    last_error() = "the memory of a window is not of ncclMemAlloc";
    return ncclUnhandledCudaError;
  }
  ncclComm& comm = living(handle, __func__);
  const std::lock_guard lock(comm.mutex);
  if (const ncclResult_t state = begin(comm); state != ncclSuccess) {
    return state;
  }
  comm.shared->place(comm.shared->rank).windows = ++comm.windows;
  comm.registration = {.window = reinterpret_cast<void**>(window),
                       .memory = static_cast<std::byte*>(memory),
                       .nbytes = nbytes,
                       .symmetric = (flags & NCCL_WIN_COLL_SYMMETRIC) != 0};
  start(comm, 3);
  finish_if_blocking(comm);
  return version() >= kQuietRegistrationVersion ? accepted(comm) : comm.state;
}

STANDIN_API ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  return forget(comm, __func__, window);
}

#endif
