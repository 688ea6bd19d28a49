#pragma once

#include "acc/collectives/process_group.hpp"
#include "device/device.hpp"

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

namespace acc::collectives {

/// Memory of a device over a group of the host: what goes to other ranks is copied down into
/// page-locked memory of the host group, meets the peers' there, and the result is copied up. Large
/// matters go in chunks: while one is in the host's collective, the next is on its way down and the
/// one before on its way up. There is no communication thread: the first copies down start at
/// issue, the rest runs in issue order in `wait`.
class StagedGroup final : public ProcessGroup {
 public:
  static constexpr std::size_t kChunkNbytes = std::size_t{4} << 20;

  /// Collective over `host`'s ranks. `chunk_nbytes`: of all ranks' parts of a chunk together.
  StagedGroup(std::shared_ptr<ProcessGroup> host, device::DevicePtr device,
              std::size_t chunk_nbytes = kChunkNbytes);
  ~StagedGroup() override;

  int rank() const noexcept override { return host_->rank(); }
  int size() const noexcept override { return host_->size(); }
  std::string describe() const override;

  bool shares_gathered_memory() const noexcept override { return false; }
  BufferPtr allocate_gathered(std::size_t nbytes) override;
  BufferPtr allocate_contribution(std::size_t nbytes) override;
  void release_gathered(const BufferPtr&) override {}

  WorkPtr all_gather(const void* shard, void* out, std::size_t shard_nbytes) override;
  WorkPtr reduce_scatter(const void* in, float* out, std::size_t shard_numel, DType dtype,
                         ReduceOptions options) override;
  WorkPtr all_reduce(float* data, std::size_t numel, float scale) override;
  WorkPtr all_reduce(std::span<double> data, ReduceOp op) override;
  WorkPtr broadcast(void* data, std::size_t nbytes, int root) override;
  WorkPtr barrier() override;
  void after(const device::EventPtr& event) override { device_->wait(*down_, *event); }

  void progress() override;
  std::optional<std::string> failure() const override { return host_->failure(); }
  void abort(const std::string& reason) noexcept override { host_->abort(reason); }

 private:
  class Op;
  using OpPtr = std::shared_ptr<Op>;

  /// Staging for one chunk; chunk n uses slot n % kSlots.
  struct Slot {
    BufferPtr contribution;    ///< what this rank brings: [chunk]
    BufferPtr gathered;        ///< what all bring: [chunk]
    device::MemoryPtr result;  ///< this rank's sums: [2 * chunk / size]
    bool filled = false;       ///< peers may still read `gathered`
    device::EventPtr down;     ///< the contribution is there
    device::EventPtr up;       ///< the slot's last content is on the device
    WorkPtr work;              ///< the host's collective
  };
  static constexpr std::uint64_t kSlots = 3;

  /// A part of a collective, in its own unit (elements or bytes of one rank's part).
  struct Range {
    std::size_t begin;
    std::size_t length;
  };
  /// One collective cut into chunks: copies to the slot, the host's collective, copies from it.
  struct Plan {
    std::size_t total = 1;
    std::size_t piece = 1;
    std::function<void(Slot&, Range)> down;
    std::function<WorkPtr(Slot&, Range)> meet;
    std::function<void(Slot&, Range)> up;
    bool gathers = false;  ///< fills `Slot::gathered`
  };

  WorkPtr issue(Plan plan);
  WorkPtr issue_on_host(std::function<WorkPtr()> call);
  void copy_down_ahead();
  void meet_next();
  void meet_through(std::uint64_t end);
  void begin_use_of_gathered(Slot& slot);
  void put_up(float* out, const void* sums, std::size_t numel, ReduceOptions options);

  std::shared_ptr<ProcessGroup> host_;
  device::DevicePtr device_;
  std::size_t chunk_nbytes_;
  device::StreamPtr down_;
  device::StreamPtr up_;
  std::array<Slot, kSlots> slots_;
  device::MemoryPtr partial_;  ///< of sums that are added to what is there
  std::deque<OpPtr> pending_;
  // Chunks, counted over all collectives: issued >= started (down) >= met (host) >= released (every
  // peer has read this rank's).
  std::uint64_t issued_ = 0;
  std::uint64_t started_ = 0;
  std::uint64_t met_ = 0;
  std::uint64_t released_ = 0;
};

}  // namespace acc::collectives
