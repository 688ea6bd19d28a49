// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "standin/nccl/board.hpp"

#include <nccl.h>

#include <atomic>
#include <cstdint>
#include <memory>

namespace standin::nccl {

/// State shared by the queued collectives of a communicator.
struct Shared {
  Shared(std::string name, int communicator_rank, int communicator_size)
      : board(std::move(name), communicator_size),
        rank(communicator_rank),
        size(communicator_size) {}
  [[nodiscard]] RankPlace& place(int r) const { return board->ranks[static_cast<std::size_t>(r)]; }
  SharedBoard board;
  int rank;
  int size;
  std::atomic<bool> aborted = false;
  std::atomic<bool> failed = false;  ///< failed in the background: no collective completes any more
  std::atomic<std::uint64_t> done = 0;
  std::uint64_t chunks = 0;  ///< used by one collective at a time
};

/// One collective of one rank; its steps run on the stand-in's stream.
class Collective {
 public:
  Collective(std::shared_ptr<Shared> shared, std::uint64_t number, const Call& call,
             const void* send, void* receive)
      : shared_(std::move(shared)), number_(number), call_(call), send_(send), receive_(receive) {}
  /// Proceeds as far as the peers allow. Returns true when the collective is complete.
  bool step();

 private:
  [[nodiscard]] bool all_came();
  void check_same_call() const;
  [[nodiscard]] std::size_t width() const;
  [[nodiscard]] std::size_t piece() const;
  void fill(std::size_t begin, std::size_t length) const;
  void drain(std::size_t begin, std::size_t length) const;
  void reduce(const std::byte* const* sources, std::byte* to, std::size_t length) const;
  bool exchange_chunks();

  std::shared_ptr<Shared> shared_;
  std::uint64_t number_;
  Call call_;
  const void* send_;
  void* receive_;
  bool posted_ = false;
  bool filled_ = false;
  std::size_t begin_ = 0;
};

std::size_t nbytes_of(int dtype);

}  // namespace standin::nccl
