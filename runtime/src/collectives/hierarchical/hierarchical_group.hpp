// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "collectives/gloo/gloo_group.hpp"
#include "collectives/shm/shm_group.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

namespace acc::collectives {

/// Process group over several hosts with the same number of ranks each: shared memory within a
/// host, Gloo between hosts. Group rank = host * ranks_per_host + local rank.
///
/// Each rank belongs to two groups: `local_`, the ranks of its host, and `column_`, the ranks with
/// the same local rank on all hosts. A collective is a sequence of collectives of these two, so
/// each byte crosses the network once per host instead of once per rank:
///  - all_gather: each column gathers its shards into the host's common copy, then a local barrier;
///  - reduce_scatter: each host sums locally, then each column sums the hosts' sums;
///  - all_reduce: local reduce_scatter, column all_reduce, local all_gather.
/// The column's step of a reduction takes its number with the first step, so that hosts may issue
/// it at different times: `progress` issues it once the local sum is complete, and a wait for this
/// or a later collective waits for the local sum and issues it. Other later steps are issued inside
/// the `wait` for their collective. A failure in either group aborts both.
class HierarchicalGroup final : public ProcessGroup {
 public:
  /// Collective. `address`: of this host, as the other hosts reach it.
  HierarchicalGroup(GroupSpec spec, int ranks_per_host, const std::string& address);

  int rank() const noexcept override { return spec_.rank; }
  int size() const noexcept override { return static_cast<int>(spec_.ranks.size()); }
  std::string describe() const override;

  bool shares_gathered_memory() const noexcept override { return false; }
  /// One copy per host, shared by its ranks.
  BufferPtr allocate_gathered(std::size_t nbytes) override;
  BufferPtr allocate_contribution(std::size_t nbytes) override;
  BufferPtr renew(const BufferPtr& old) override;
  void release_gathered(const BufferPtr& gathered) override;

  WorkPtr all_gather(const void* shard, void* out, std::size_t shard_nbytes) override;
  WorkPtr all_gather_coded(const void* shard, void* out, std::size_t shard_numel, DType dtype,
                           BlockCode code) override;
  WorkPtr reduce_scatter(const void* in, float* out, std::size_t shard_numel, DType dtype,
                         ReduceOptions options) override;
  WorkPtr all_reduce(float* data, std::size_t numel, DType dtype, float scale) override;
  WorkPtr all_reduce_coded(float* data, std::size_t numel, DType dtype, float scale,
                           BlockCode code) override;
  WorkPtr all_reduce(std::span<double> data, ReduceOp op) override;
  WorkPtr broadcast(void* data, std::size_t nbytes, int root) override;
  WorkPtr barrier() override;
  void after(const std::shared_ptr<device::Event>&) override {}

  bool spans_machines() const noexcept override { return true; }
  SentBytes sent() const noexcept override { return column_.sent(); }
  void defer_posts(bool defer) override { local_.defer_posts(defer); }
  void progress() override;
  std::optional<std::string> failure() const override;
  void abort(const std::string& reason, Errc code) noexcept override;

 private:
  class Steps;
  struct Step {
    std::function<WorkPtr()> issue;
    bool is_numbered = false;  ///< does not take its place in the order of its group when issued
  };
  WorkPtr steps(WorkPtr first, std::vector<Step> rest);
  void finish_earlier();
  /// Issues the numbered steps of the collectives before number `end` of `steps`.
  void begin_numbered(std::uint64_t end);
  /// Shards, [numel] of `dtype`, that are sent in `code`.
  struct Shards {
    std::size_t numel;
    DType dtype;
    BlockCode code;
  };
  /// `out` is common memory of the host: this rank's column brings one shard per host, and the
  /// local barrier says that all columns have brought theirs.
  WorkPtr gather_into_common(const void* shard, std::byte* out, Shards shards, WorkPtr& released);
  /// `out` is private memory: gathers the host's block locally, then exchanges whole blocks in the
  /// column.
  WorkPtr gather_into_private(const void* shard, std::byte* out, Shards shards);
  [[nodiscard]] float host_scale(DType dtype) const;
  [[nodiscard]] std::size_t host() const { return static_cast<std::size_t>(column_.rank()); }
  [[nodiscard]] std::size_t hosts() const { return static_cast<std::size_t>(column_.size()); }
  [[nodiscard]] std::size_t locals() const { return static_cast<std::size_t>(local_.size()); }
  [[nodiscard]] std::size_t local_rank() const { return static_cast<std::size_t>(local_.rank()); }

  GroupSpec spec_;
  ShmGroup local_;
  GlooGroup column_;
  /// For each gathered buffer, by address: the local barrier that completes when every rank of the
  /// host has released the buffer's content. Null if the content is in use, or the buffer is new.
  std::map<const std::byte*, WorkPtr> gathered_;
  std::uint64_t issued_ = 0;                      ///< number of calls of `steps`
  std::vector<std::weak_ptr<Steps>> unfinished_;  ///< works that may be unfinished, in issue order
};

}  // namespace acc::collectives
