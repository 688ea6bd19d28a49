#pragma once

#include "acc/collectives/process_group.hpp"
#include "collectives/shm/shm_channel.hpp"

#include <memory>
#include <string>
#include <vector>

namespace gloo {
class Context;
}  // namespace gloo

namespace acc::collectives {

class StallWatch;

/// Ranks of different hosts over TCP, on Gloo's point-to-point buffers. Sends and receives run on
/// Gloo's thread from the moment of issue; sums are done in `wait`, in rank order. Every message
/// carries its collective's number, kind and size as tag, so that different calls never mix; who
/// waits long compares with the peers through the store and names the rank that differs.
class GlooGroup final : public ProcessGroup {
 public:
  /// `address`: of this host, as the peers reach it.
  GlooGroup(GroupSpec spec, const std::string& address);
  ~GlooGroup() override;

  int rank() const noexcept override { return spec_.rank; }
  int size() const noexcept override { return static_cast<int>(spec_.ranks.size()); }
  std::string describe() const override;

  bool shares_gathered_memory() const noexcept override { return false; }
  BufferPtr allocate_gathered(std::size_t nbytes) override;
  BufferPtr allocate_contribution(std::size_t nbytes) override;
  void release_gathered(const BufferPtr&) override {}

  WorkPtr all_gather(const void* shard, void* out, std::size_t shard_nbytes) override;
  /// The same with a place of its own for each rank's shard; this rank's is left alone.
  WorkPtr gather_to(const void* shard, std::vector<void*> places, std::size_t shard_nbytes);
  WorkPtr reduce_scatter(const void* in, float* out, std::size_t shard_numel, DType dtype,
                         ReduceOptions options) override;
  WorkPtr all_reduce(float* data, std::size_t numel, float scale) override;
  WorkPtr all_reduce(std::span<double> data, ReduceOp op) override;
  WorkPtr broadcast(void* data, std::size_t nbytes, int root) override;
  WorkPtr barrier() override;
  void after(const std::shared_ptr<device::Event>&) override {}

  void progress() override {}
  /// Aborted here or, seen within a second or so, by a peer; or a connection broke under a
  /// collective of this rank.
  std::optional<std::string> failure() const override;
  void abort(const std::string& reason) noexcept override;

 private:
  class Exchange;
  std::shared_ptr<Exchange> start(OpKind kind, DType dtype, std::uint64_t count);
  /// Everybody's `data` goes to everybody: the scratch of the result holds it in rank order.
  std::shared_ptr<Exchange> exchange_all(OpKind kind, DType dtype, std::uint64_t count,
                                         const void* data, std::size_t nbytes);

  GroupSpec spec_;
  std::shared_ptr<gloo::Context> context_;
  std::unique_ptr<StallWatch> watch_;
  std::uint32_t sequence_ = 0;
};

}  // namespace acc::collectives
