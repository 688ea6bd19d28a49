// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/settings/sharding_settings.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace acc::swap {

/// Offsets, sizes and buffers of transfers are multiples of this, which O_DIRECT needs.
inline constexpr std::size_t kPage = 4096;

constexpr std::size_t round_up(std::size_t value, std::size_t step) noexcept {
  return (value + step - 1) / step * step;
}

/// A read or write of one stretch of a file, in blocks. Lives until it has ended.
struct Transfer {
  std::size_t open_blocks = 0;  ///< not complete; guarded by the engine
  std::string problem;          ///< of the first block that failed; empty: none
};

/// A part of a transfer that the system gets in one request.
struct Block {
  int file = -1;
  bool writes = false;
  std::uint64_t offset = 0;
  std::byte* data = nullptr;
  std::size_t nbytes = 0;
  int buffer = -1;  ///< number of the registered buffer that contains `data`; -1: none
  Transfer* transfer = nullptr;
};

/// Reads and writes files while the caller computes. One thread uses it. Two implementations:
/// io_uring, and threads with pread(2) and pwrite(2), for systems that do not permit io_uring.
class Transfers {
 public:
  virtual ~Transfers() = default;
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;

  /// Starts to read `nbytes` at `offset` into `data`, or to write them. `data` lies in buffer
  /// number `buffer` of those given to make_transfers.
  void start(Transfer& transfer, bool writes, int file, std::uint64_t offset, std::byte* data,
             std::size_t nbytes, int buffer);
  /// Keeps the queue of the disk filled. Does not block.
  virtual void progress() = 0;
  /// True if the transfer has ended. Does not block.
  [[nodiscard]] virtual bool done(const Transfer& transfer) = 0;
  /// Blocks until the transfer has ended, also if it failed.
  virtual void wait(const Transfer& transfer) = 0;
  /// "io_uring" or "threads", for logs and tests.
  [[nodiscard]] virtual const char* name() const noexcept = 0;

 protected:
  explicit Transfers(const settings::NvmeSettings& settings)
      : settings_(settings),
        block_nbytes_(round_up(static_cast<std::size_t>(settings.block_size), kPage)) {}
  virtual void issue(std::span<const Block> blocks) = 0;

  const settings::NvmeSettings settings_;

 private:
  std::size_t block_nbytes_;
};

/// Outcome of one request of a block. Returns true if the block has ended; otherwise `block` is its
/// rest, which is to be requested again. result: bytes, or -errno.
bool end_request(Block& block, std::int64_t result, std::string& problem);

/// Makes the engine: io_uring, or threads if the system refuses that. buffers: memory of all
/// transfers, which outlives it.
std::unique_ptr<Transfers> make_transfers(const settings::NvmeSettings& settings,
                                          std::span<const std::span<std::byte>> buffers);

// The implementations. make_uring_transfers returns null, and the reason, if the system refuses
// io_uring or this build has none.
std::unique_ptr<Transfers> make_uring_transfers(const settings::NvmeSettings& settings,
                                                std::span<const std::span<std::byte>> buffers,
                                                std::string& reason);
std::unique_ptr<Transfers> make_thread_transfers(const settings::NvmeSettings& settings);

}  // namespace acc::swap
