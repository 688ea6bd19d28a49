// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/own_process.hpp"
#include "acc/collectives/process_group.hpp"
#include "collectives/gloo/exchange.hpp"

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

namespace acc::collectives {

/// A socket of Gloo. inode: tells whether the descriptor still stands for it.
struct MeshSocket {
  int fd;
  ino_t inode;
};

/// Process group over TCP, for ranks of different hosts, on Gloo's point-to-point buffers. Sends
/// and receives run on Gloo's thread from the moment of issue. Sums are computed in rank order: in
/// `wait`, or, where messages depend on a sum (all_reduce of three and more ranks), on a thread of
/// the group, so that these messages do not wait for the caller. The tag of every message has the
/// collective's number and a hash of its kind, size and dtype, so messages of different calls never
/// match. A rank whose wait takes long compares its calls with those of the peers through the store
/// (StallWatch) and fails with the name of the rank that differs.
class GlooGroup final : public ProcessGroup {
 public:
  /// Connects all pairs of ranks. Collective. `address`: of this host, as the peers reach it;
  /// GLOO_SOCKET_IFNAME overrides it. Throws Error(connection | peer_lost | protocol).
  GlooGroup(GroupSpec spec, const std::string& address);

  int rank() const noexcept override { return ranks_.spec.rank; }
  int size() const noexcept override { return static_cast<int>(ranks_.size()); }
  std::string describe() const override { return ranks_.describe(); }

  bool shares_gathered_memory() const noexcept override { return false; }
  BufferPtr allocate_gathered(std::size_t nbytes) override;
  BufferPtr allocate_contribution(std::size_t nbytes) override;
  BufferPtr renew(const BufferPtr& old) override;
  void release_gathered(const BufferPtr&) override {}

  WorkPtr all_gather(const void* shard, void* out, std::size_t shard_nbytes) override;
  WorkPtr all_gather_coded(const void* shard, void* out, std::size_t shard_numel, DType dtype,
                           BlockCode code) override;
  /// Gathers the shard of rank r, [shard_numel] of `dtype`, to places[r]. Without a code, does not
  /// write places[rank()].
  WorkPtr gather_to(const void* shard, std::vector<void*> places, std::size_t shard_numel,
                    DType dtype, BlockCode code);
  WorkPtr reduce_scatter(const void* in, float* out, std::size_t shard_numel, DType dtype,
                         ReduceOptions options) override {
    return reduce_scatter(reserve(), in, out, shard_numel, dtype, options);
  }
  WorkPtr all_reduce(float* data, std::size_t numel, DType dtype, float scale) override {
    return all_reduce(reserve(), data, numel, dtype, scale, {});
  }
  WorkPtr all_reduce_coded(float* data, std::size_t numel, DType dtype, float scale,
                           BlockCode code) override {
    return all_reduce(reserve(), data, numel, dtype, scale, code);
  }
  WorkPtr all_reduce(std::span<double> data, ReduceOp op) override;

  /// Takes the number of the next collective, which the caller issues later. All ranks take their
  /// numbers in the same order; they may issue the collectives in different orders.
  std::uint32_t reserve() { return ++sequence_; }
  WorkPtr reduce_scatter(std::uint32_t number, const void* in, float* out, std::size_t shard_numel,
                         DType dtype, ReduceOptions options);
  WorkPtr all_reduce(std::uint32_t number, float* data, std::size_t numel, DType dtype, float scale,
                     BlockCode code);
  WorkPtr broadcast(void* data, std::size_t nbytes, int root) override;
  WorkPtr barrier() override;
  void after(const std::shared_ptr<device::Event>&) override {}

  bool spans_machines() const noexcept override { return true; }
  SentBytes sent() const noexcept override { return {ranks_.sent.gathered, ranks_.sent.reduced}; }
  void progress() override {}
  /// The reason why the group is unusable: this rank aborted it, a connection broke during one of
  /// its collectives, or a peer aborted it, which this rank sees within about a second.
  std::optional<std::string> failure() const override { return ranks_.watch->failure(); }
  void abort(const std::string& reason, Errc code) noexcept override;

 private:
  /// Begins the next collective.
  std::shared_ptr<Exchange> start(OpKind kind, DType dtype, std::uint64_t count) {
    return ranks_.start(reserve(), kind, dtype, count);
  }
  /// Sends `data` of every rank to every rank. The scratch memory of the result holds it in rank
  /// order.
  std::shared_ptr<Exchange> exchange_all(OpKind kind, DType dtype, std::uint64_t count,
                                         const void* data, std::size_t nbytes);

  void close_in_child() const noexcept;

  GlooRanks ranks_;
  std::uint32_t sequence_ = 0;  ///< last number taken by a collective
  std::vector<MeshSocket> sockets_;
  ForkHook closes_in_child_{[this] { close_in_child(); }};
};

}  // namespace acc::collectives
