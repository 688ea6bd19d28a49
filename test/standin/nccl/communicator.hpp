// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "standin/nccl/collective.hpp"

#include <map>
#include <memory>
#include <mutex>
#include <optional>

/// NCCL's handle. Work that a non-blocking communicator does in the background is done here when
/// its state is polled.
struct ncclComm {
  /// Options of ncclConfig_t that the stand-in looks at.
  struct Options {
    bool blocking = true;
    bool split_share = false;
    bool zero_ctas = false;
  };
  ncclComm(std::string name, int rank, int size, int gpu, const Options& options);

  std::mutex mutex;  ///< guards all members except `shared`
  std::shared_ptr<standin::nccl::Shared> shared;
  int device;
  Options options;
  ncclResult_t state = ncclInProgress;
  bool dead = false;  ///< destroyed or aborted: the handle must not be used
  int polls_left = 3;
  bool connected = false;
  bool finalizing = false;
  std::uint64_t issued = 0;
  std::uint64_t splits = 0;
  std::uint64_t windows = 0;
  struct Registered {
    std::size_t nbytes;
    std::uint64_t window;  ///< number of a symmetric window; 0: plain
  };
  std::multimap<std::byte*, Registered> registered;

  /// A split in progress, with the place to which the new communicator's handle is written.
  struct Split {
    ncclComm** child;
    Options child_options;
  };
  std::optional<Split> split;
  /// A window registration in progress, with the place to which the window is written.
  struct Registration {
    void** window;
    std::byte* memory;
    std::size_t nbytes;
    bool symmetric;
  };
  std::optional<Registration> registration;

  /// Proceeds with the operation in progress. Requires the mutex.
  ncclResult_t poll();
  ncclResult_t enqueue(standin::nccl::Call call, const void* send, void* receive,
                       cudaStream_t stream);
  /// Adds a registration. Ends the process if a symmetric window overlaps another one.
  void add(std::byte* memory, const Registered& entry);

 private:
  ncclResult_t poll_connect();
  ncclResult_t poll_split();
  ncclResult_t poll_registration();
  /// The registration that contains [address, address + nbytes); end() if there is none.
  [[nodiscard]] std::multimap<std::byte*, Registered>::const_iterator find(
      const void* address, std::size_t nbytes) const;
  [[nodiscard]] standin::nccl::WindowPlace place_of(const void* address, std::size_t nbytes) const;
  /// The way in which the real NCCL would execute the collective, for the log.
  [[nodiscard]] const char* path_of(const standin::nccl::Call& call, const void* send,
                                    const void* receive) const;
  [[nodiscard]] bool two_ranks_share_a_gpu() const;
};

namespace standin::nccl {

int version();
/// Appends a line to the file that ACC_STANDIN_NCCL_LOG names, if it does.
void log(const std::string& line);
/// Text that ncclGetLastError returns.
std::string& last_error();

}  // namespace standin::nccl
