// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/collectives/process_group.hpp"
#include "cuda/nccl/communicator.hpp"
#include "device/device.hpp"

#include <memory>
#include <vector>

namespace acc::cuda {

/// GPU memory of NCCL's allocator (ncclMemAlloc), registered with one communicator. NCCL's
/// symmetric kernels, and its collectives on copy engines, need both buffers of a collective in
/// symmetric windows, at offsets that are equal on all ranks where peers read or write. The arena
/// guarantees the offsets: ranks that make the same allocations in the same order get the same
/// places, whenever each of them frees its memory.
///
/// Large pieces have a segment each. Small ones are cut, one behind the other, from segments of
/// `kGranularity`. A segment is freed with its last piece; the one that is being cut is kept.
class RegisteredArena {
 public:
  /// NCCL and CUDA round up to the granularity that the driver recommends for cuMemCreate, 2 MiB.
  /// Segments are multiples of it, so that reports count the memory that is taken.
  static constexpr std::size_t kGranularity = std::size_t{2} << 20;

  RegisteredArena(std::shared_ptr<Communicator> communicator, device::DevicePtr device)
      : communicator_(std::move(communicator)), device_(std::move(device)) {}

  /// Returns `nbytes`, zero-filled on the compute stream and aligned to 512 bytes. `what`: purpose
  /// in memory reports. Collective over the communicator. Returns null on every rank if this NCCL
  /// version does not support registration. Throws Error(out_of_memory).
  collectives::BufferPtr allocate(std::size_t nbytes, const char* what);
  /// True if the byte at `address` is in memory of this arena.
  [[nodiscard]] bool contains(const void* address) const;

 private:
  class Segment;
  class Piece;

  std::shared_ptr<Segment> make_segment(std::size_t nbytes, const char* what);

  std::shared_ptr<Communicator> communicator_;
  device::DevicePtr device_;
  std::vector<std::weak_ptr<Segment>> segments_;
  std::shared_ptr<Segment> open_;  ///< segment from which small pieces are cut; null: none yet
  std::size_t used_ = 0;           ///< bytes of it that have been given away
};

}  // namespace acc::cuda
