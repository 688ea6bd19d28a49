// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/collectives/process_group.hpp"
#include "collectives/shm/shm_channel.hpp"
#include "collectives/shm/staging_chunks.hpp"

#include <deque>
#include <functional>
#include <list>
#include <map>
#include <optional>

namespace acc::collectives {

/// Process group over shared memory, for ranks of one host. Inputs that lie in the group's own
/// buffers are read in place by the peers; private memory is copied through small staging chunks.
/// There is no communication thread: a rank does its share of a collective in `wait` or `progress`.
///
/// A collective has three stages, each with a counter in the control block: *posted* (the rank has
/// published its descriptor, and its input is ready), *executed* (the rank has waited for all ranks
/// to post, compared their descriptors with its own, and done its copies or sums), and *finished*
/// (the rank has announced that it no longer reads the peers' inputs). Collectives execute in issue
/// order.
///
/// Buffers hold a pointer to their group, which must outlive them.
class ShmGroup final : public ProcessGroup {
 public:
  /// Collective. If `share_gathered` is false, each rank has its own gathered memory and gathers
  /// copy. This is for tests, and to behave on one host as on several hosts.
  ShmGroup(GroupSpec spec, bool share_gathered);
  ~ShmGroup() override;

  int rank() const noexcept override { return channel_.rank(); }
  int size() const noexcept override { return channel_.size(); }
  std::string describe() const override;

  bool shares_gathered_memory() const noexcept override { return share_gathered_; }
  BufferPtr allocate_gathered(std::size_t nbytes) override;
  BufferPtr allocate_contribution(std::size_t nbytes) override;
  /// Gathered memory with one copy for the host, regardless of `share_gathered`. Collective.
  BufferPtr allocate_common(std::size_t nbytes);
  BufferPtr renew(const BufferPtr& old) override;
  void release_gathered(const BufferPtr& gathered) override;

  WorkPtr all_gather(const void* shard, void* out, std::size_t shard_nbytes) override;
  WorkPtr reduce_scatter(const void* in, float* out, std::size_t shard_numel, DType dtype,
                         ReduceOptions options) override;
  /// Part of a reduce_scatter over more ranks than this group's (see HierarchicalGroup): for each
  /// i, outs[i] [numel] becomes the sum over ranks of in[firsts[i], firsts[i] + numel). Each rank
  /// may choose its own `firsts`. `in` must be contribution memory of this group. `call_numel` is
  /// the size that is compared between ranks.
  WorkPtr reduce_slices(const void* in, std::size_t call_numel, DType dtype,
                        std::vector<std::size_t> firsts, std::vector<float*> outs,
                        std::size_t numel, ReduceOptions options);
  WorkPtr all_reduce(float* data, std::size_t numel, DType dtype, float scale) override;
  WorkPtr all_reduce(std::span<double> data, ReduceOp op) override;
  WorkPtr broadcast(void* data, std::size_t nbytes, int root) override;
  WorkPtr barrier() override;
  void after(const std::shared_ptr<device::Event>&) override {}

  void defer_posts(bool defer) override;
  void progress() override;
  std::optional<std::string> failure() const override { return channel_.failure(); }
  void abort(const std::string& reason, Errc code) noexcept override {
    channel_.abort(reason, code);
  }

 private:
  class Op;
  class Buffer;
  using OpPtr = std::shared_ptr<Op>;
  /// Shared memory of one allocation.
  struct Segment {
    std::int32_t id;  ///< the same on all ranks, because all allocate in the same order
    std::byte* base;  ///< where this process has mapped it
    std::size_t nbytes;
    std::size_t stride;  ///< bytes from one rank's part to the next; 0: one part shared by all

    /// Bytes of one rank's part.
    [[nodiscard]] std::size_t part_nbytes() const noexcept { return stride == 0 ? nbytes : stride; }
  };
  struct Place {
    const Segment* segment;
    std::size_t offset;  ///< bytes from the start of this rank's part
  };

  /// Posts a collective. `execute` does this rank's share; it runs once all ranks have posted. If
  /// `blocking`, it needs the peers to take part at the same time, so `progress` does not run it.
  /// If `result_needs_all`, the result is complete only when all ranks have finished.
  WorkPtr issue(OpDescriptor descriptor, std::function<void()> execute, bool blocking,
                bool result_needs_all = false);
  /// Publishes the descriptors and inputs of all collectives issued so far.
  void post();
  /// Executes pending collectives in order, up to and including number `sequence`.
  void complete_through(std::uint32_t sequence);
  /// Waits until all ranks have posted collective `sequence`, and fails if their calls differ.
  void await_posted(std::uint32_t sequence);
  /// Waits until no rank reads this rank's input of collective `sequence` any more.
  void await_finished(std::uint32_t sequence);
  [[nodiscard]] bool all_posted(std::uint32_t sequence) const {
    return channel_.all_reached(&RankControl::posted, sequence);
  }
  /// Aborts the group with an error that lists the calls that each rank made as number `sequence`.
  [[noreturn]] void fail_different(std::uint32_t sequence);
  [[nodiscard]] const OpDescriptor& descriptor_of(int rank, std::uint32_t sequence) const;
  [[nodiscard]] std::string name_of(std::uint32_t sequence) const;

  /// replaced: whose address the memory gets; null: any.
  BufferPtr allocate(std::size_t nbytes, bool one_part, Buffer* replaced = nullptr);
  /// Place of `data` in this rank's part of a segment; empty if it is private memory.
  [[nodiscard]] std::optional<Place> find(const void* data) const;
  /// Bytes [begin, begin + nbytes) of the input that `rank` published for collective `sequence`, in
  /// elements of `width` bytes. For inputs in group memory. The place comes from the peer and is
  /// checked: fails, naming the rank, if the bytes do not lie in that rank's part of a segment.
  [[nodiscard]] const std::byte* input_of(int rank, std::uint32_t sequence, std::size_t begin,
                                          std::size_t nbytes, std::size_t width);
  static void describe_input(OpDescriptor& descriptor, const std::optional<Place>& place);

  /// Moves `total` bytes through the staging chunks, `piece` bytes at a time. `fill(stage, begin,
  /// length)` writes this rank's next piece; `drain(begin, length)` then reads the peers' pieces at
  /// `staging_.of(rank)`.
  void run_staged(std::size_t total, std::size_t piece,
                  const std::function<void(std::byte*, std::size_t, std::size_t)>& fill,
                  const std::function<void(std::size_t, std::size_t)>& drain);

  void sum_slice_everywhere(std::uint32_t sequence, std::size_t numel, float scale);

  ShmChannel channel_;
  StagingChunks staging_{channel_};
  bool share_gathered_;
  /// Barriers behind which gathered memory that this rank has released may be written.
  std::map<const std::byte*, WorkPtr> released_;
  std::uint32_t issued_ = 0;     ///< number of the last collective issued
  bool defers_ = false;          ///< `issue` does not post
  std::uint32_t completed_ = 0;  ///< number of the last collective executed
  std::int32_t next_segment_ = 0;
  std::deque<OpPtr> pending_;  ///< posted and not executed, in order
  /// Erased by the buffers that own the mappings, which may outlive a group that was replaced.
  std::shared_ptr<std::list<Segment>> segments_ = std::make_shared<std::list<Segment>>();
};

}  // namespace acc::collectives
