#pragma once

#include "acc/collectives/process_group.hpp"
#include "collectives/shm/shm_channel.hpp"

#include <deque>
#include <functional>
#include <list>
#include <optional>

namespace acc::collectives {

/// Ranks of one host over shared memory. Collectives whose input lies in the group's own memory are
/// read in place by the peers; private memory travels through small staging chunks. There is no
/// communication thread: what a rank has to do for a collective, it does in `wait` or `progress`.
class ShmGroup final : public ProcessGroup {
 public:
  /// `share_gathered` false gives private gathered memory, so that gathers copy (for tests, and to
  /// show on one host what several hosts do).
  ShmGroup(GroupSpec spec, bool share_gathered);
  ~ShmGroup() override;

  int rank() const noexcept override { return channel_.rank(); }
  int size() const noexcept override { return channel_.size(); }
  std::string describe() const override;

  bool shares_gathered_memory() const noexcept override { return share_gathered_; }
  BufferPtr allocate_gathered(std::size_t nbytes) override;
  BufferPtr allocate_contribution(std::size_t nbytes) override;
  /// One copy for the host, whatever `share_gathered` says.
  BufferPtr allocate_common(std::size_t nbytes);
  void release_gathered(const BufferPtr& gathered) override;

  WorkPtr all_gather(const void* shard, void* out, std::size_t shard_nbytes) override;
  WorkPtr reduce_scatter(const void* in, float* out, std::size_t shard_numel, DType dtype,
                         ReduceOptions options) override;
  /// The same for part of a larger matter: out [numel] is the sum of in[first, first + numel) of
  /// all ranks, each with its own `first`. In must be contribution memory; `call_numel` is what all
  /// ranks agree on.
  WorkPtr reduce_slices(const void* in, std::size_t call_numel, DType dtype,
                        std::vector<std::size_t> firsts, std::vector<float*> outs,
                        std::size_t numel, ReduceOptions options);
  WorkPtr all_reduce(float* data, std::size_t numel, float scale) override;
  WorkPtr all_reduce(std::span<double> data, ReduceOp op) override;
  WorkPtr broadcast(void* data, std::size_t nbytes, int root) override;
  WorkPtr barrier() override;
  void after(const std::shared_ptr<device::Event>&) override {}

  void progress() override;
  std::optional<std::string> failure() const override { return channel_.failure(); }
  void abort(const std::string& reason) noexcept override { channel_.abort(reason); }

 private:
  class Op;
  class Buffer;
  using OpPtr = std::shared_ptr<Op>;
  struct Segment {
    std::int32_t id;
    std::byte* base;
    std::size_t nbytes;
    std::size_t stride;  ///< bytes from one rank's part to the next; 0: one part for all
  };
  struct Place {
    const Segment* segment;
    std::size_t offset;  ///< in this rank's part
  };

  WorkPtr issue(OpDescriptor descriptor, std::function<void()> execute, bool blocking,
                bool result_needs_all = false);
  void complete_through(std::uint32_t sequence);
  void await_posted(std::uint32_t sequence);
  void await_finished(std::uint32_t sequence);
  [[nodiscard]] bool all_posted(std::uint32_t sequence) const;
  [[noreturn]] void fail_different(std::uint32_t sequence);
  void await_other_calls(std::uint32_t sequence) const;
  [[nodiscard]] const OpDescriptor& descriptor_of(int rank, std::uint32_t sequence) const;
  [[nodiscard]] std::string name_of(std::uint32_t sequence) const;

  BufferPtr allocate(std::size_t nbytes, bool one_part);
  [[nodiscard]] std::optional<Place> find(const void* data) const;
  /// Where `rank` put its input of collective `sequence`; group memory only.
  [[nodiscard]] const std::byte* input_of(int rank, std::uint32_t sequence) const;
  static void describe_input(OpDescriptor& descriptor, const std::optional<Place>& place);

  /// Moves `total` bytes through the staging chunks: `fill(stage, begin, length)` writes this
  /// rank's next piece, `drain(begin, length)` reads the peers' pieces by `peer_stage(rank)`.
  void run_staged(std::size_t total, std::size_t piece,
                  const std::function<void(std::byte*, std::size_t, std::size_t)>& fill,
                  const std::function<void(std::size_t, std::size_t)>& drain);
  [[nodiscard]] const std::byte* peer_stage(int rank) const;

  void sum_slice_everywhere(std::uint32_t sequence, std::size_t numel, float scale);

  ShmChannel channel_;
  bool share_gathered_;
  std::uint32_t issued_ = 0;
  std::uint32_t completed_ = 0;
  std::uint32_t chunks_ = 0;
  std::int32_t next_segment_ = 0;
  std::deque<OpPtr> pending_;
  std::list<Segment> segments_;
};

}  // namespace acc::collectives
