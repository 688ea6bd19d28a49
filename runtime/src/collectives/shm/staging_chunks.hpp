// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "collectives/shm/shm_channel.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace acc::collectives {

/// The protocol by which private memory reaches the ranks of a host: a series of chunks, of which
/// all ranks use the same number. For each chunk a rank writes its own memory (`next`), announces
/// it
/// (`post`), reads the peers' (`await`, `of`), and declares that it has read them (`finish`). The
/// two chunks of a rank alternate, so a rank can write one while slower peers still read the other.
///
/// Waits are those of ShmChannel: they throw Error(collective | timeout) and abort the group. what:
/// describes the collective for the error.
class StagingChunks {
 public:
  using What = std::function<std::string()>;

  explicit StagingChunks(ShmChannel& channel) : channel_(channel) {}

  /// Begins the next chunk and returns this rank's memory for it, kStagingChunk bytes: waits until
  /// all ranks have finished the chunk that it overwrites.
  std::byte* next(const What& what) {
    ++number_;
    for (int r = 0; r < channel_.size() && number_ > 2; ++r) {
      channel_.wait(channel_.control(r).chunk_finished, number_ - 2, r, what);
    }
    return channel_.staging(channel_.rank(), number_ % 2);
  }
  void post() { ShmChannel::advance(channel_.own().chunk_posted, number_); }
  /// Waits until `rank` has posted the current chunk.
  void await(int rank, const What& what) {
    channel_.wait(channel_.control(rank).chunk_posted, number_, rank, what);
  }
  /// Memory of the current chunk of `rank`.
  [[nodiscard]] const std::byte* of(int rank) const { return channel_.staging(rank, number_ % 2); }
  void finish() { ShmChannel::advance(channel_.own().chunk_finished, number_); }

 protected:
  ShmChannel& channel_;
  std::uint32_t number_ = 0;  ///< of the current chunk, over all collectives
};

}  // namespace acc::collectives
