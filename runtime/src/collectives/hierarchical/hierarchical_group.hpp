#pragma once

#include "collectives/gloo/gloo_group.hpp"
#include "collectives/shm/shm_group.hpp"
#include "collectives/steps.hpp"

#include <map>
#include <memory>
#include <vector>

namespace acc::collectives {

/// Several hosts with equally many ranks each: shared memory within a host, Gloo between hosts. A
/// rank talks to its *column*, the ranks with its place on the other hosts; what its column brings,
/// the whole host shares. Group rank = host * ranks_per_host + local rank.
class HierarchicalGroup final : public ProcessGroup {
 public:
  HierarchicalGroup(GroupSpec spec, int ranks_per_host, const std::string& address);

  int rank() const noexcept override { return spec_.rank; }
  int size() const noexcept override { return static_cast<int>(spec_.ranks.size()); }
  std::string describe() const override;

  bool shares_gathered_memory() const noexcept override { return false; }
  /// One copy for the ranks of a host.
  BufferPtr allocate_gathered(std::size_t nbytes) override;
  BufferPtr allocate_contribution(std::size_t nbytes) override;
  void release_gathered(const BufferPtr& gathered) override;

  WorkPtr all_gather(const void* shard, void* out, std::size_t shard_nbytes) override;
  WorkPtr reduce_scatter(const void* in, float* out, std::size_t shard_numel, DType dtype,
                         ReduceOptions options) override;
  WorkPtr all_reduce(float* data, std::size_t numel, float scale) override;
  WorkPtr all_reduce(std::span<double> data, ReduceOp op) override;
  WorkPtr broadcast(void* data, std::size_t nbytes, int root) override;
  WorkPtr barrier() override;
  void after(const std::shared_ptr<device::Event>&) override {}

  void progress() override { local_.progress(); }
  std::optional<std::string> failure() const override;
  void abort(const std::string& reason) noexcept override;

 private:
  WorkPtr steps(WorkPtr first, std::vector<Steps::Step> rest);
  void finish_earlier();
  WorkPtr gather_into_common(const void* shard, std::byte* out, std::size_t shard_nbytes,
                             WorkPtr& released);
  WorkPtr gather_into_private(const void* shard, std::byte* out, std::size_t shard_nbytes);
  [[nodiscard]] std::size_t host() const { return static_cast<std::size_t>(column_.rank()); }
  [[nodiscard]] std::size_t hosts() const { return static_cast<std::size_t>(column_.size()); }
  [[nodiscard]] std::size_t locals() const { return static_cast<std::size_t>(local_.size()); }
  [[nodiscard]] std::size_t local_rank() const { return static_cast<std::size_t>(local_.rank()); }

  GroupSpec spec_;
  ShmGroup local_;
  GlooGroup column_;
  /// Of each gathered buffer: complete when every rank of the host has let go of its content.
  std::map<const std::byte*, WorkPtr> gathered_;
  std::vector<std::weak_ptr<Work>> unfinished_;  ///< that may be, in the order of their issue
};

}  // namespace acc::collectives
