// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "standin/nccl/collective.hpp"

#include <memory>
#include <mutex>
#include <optional>
#include <set>

/// NCCL's handle. Work that a non-blocking communicator does in the background is done here when
/// its state is polled.
struct ncclComm {
  ncclComm(std::string name, int rank, int size, int gpu, bool blocking);

  std::mutex mutex;  ///< guards all members except `shared`
  std::shared_ptr<standin::nccl::Shared> shared;
  int device;
  bool blocking;
  ncclResult_t state = ncclInProgress;
  bool dead = false;  ///< destroyed or aborted: the handle must not be used
  int polls_left = 3;
  bool connected = false;
  bool finalizing = false;
  std::uint64_t issued = 0;
  std::uint64_t splits = 0;
  std::uint64_t windows = 0;
  std::set<void*> registered;

  /// A split in progress, with the place to which the new communicator's handle is written.
  struct Split {
    ncclComm** child;
    bool child_blocks;
  };
  std::optional<Split> split;
  /// A window registration in progress, with the place to which the window is written.
  struct Registration {
    void** window;
    void* memory;
  };
  std::optional<Registration> registration;

  /// Proceeds with the operation in progress. Requires the mutex.
  ncclResult_t poll();
  ncclResult_t enqueue(const standin::nccl::Call& call, const void* send, void* receive,
                       cudaStream_t stream);

 private:
  ncclResult_t poll_connect();
  ncclResult_t poll_split();
  ncclResult_t poll_registration();
  [[nodiscard]] bool two_ranks_share_a_gpu() const;
};

namespace standin::nccl {

int version();
/// Text that ncclGetLastError returns.
std::string& last_error();

}  // namespace standin::nccl
