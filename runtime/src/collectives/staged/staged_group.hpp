// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/collectives/process_group.hpp"
#include "collectives/device_buffer.hpp"
#include "device/device.hpp"

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

namespace acc::collectives {

/// Process group for device memory that moves through host memory. Each chunk of a collective
/// passes three stages:
///  1. down: the input is copied from the device to page-locked memory of the host group;
///  2. meet: the host group runs its collective on that memory;
///  3. up: the result is copied from host memory to the device.
/// The stages of successive chunks overlap: while one chunk is in the host's collective, the next
/// is copied down and the one before is copied up. There is no communication thread. The first
/// copies down start at issue; all other stages run in issue order on the thread that calls `wait`.
///
/// Ordering: the copies run on two own streams, `down_` and `up_`. A copy down waits, by event, for
/// what the compute stream had been given at the issue of its collective, and for the copy up that
/// used the same slot before. The host waits for the copies of a slot before it runs the
/// collective. `Work::wait` makes the compute stream wait for the last copy up.
class StagedGroup final : public ProcessGroup {
 public:
  static constexpr std::size_t kChunkNbytes = std::size_t{4} << 20;

  /// Collective over `host`'s ranks. `chunk_nbytes`: size of one chunk, all ranks' parts together.
  StagedGroup(std::shared_ptr<ProcessGroup> host, device::DevicePtr device,
              std::size_t chunk_nbytes = kChunkNbytes);
  ~StagedGroup() override;

  int rank() const noexcept override { return host_->rank(); }
  int size() const noexcept override { return host_->size(); }
  std::string describe() const override;

  bool shares_gathered_memory() const noexcept override { return false; }
  BufferPtr allocate_gathered(std::size_t nbytes) override;
  BufferPtr allocate_contribution(std::size_t nbytes) override;
  BufferPtr renew(const BufferPtr&) override { refuse_renewal(describe()); }
  void release_gathered(const BufferPtr&) override {}

  WorkPtr all_gather(const void* shard, void* out, std::size_t shard_nbytes) override;
  WorkPtr all_gather_coded(const void* shard, void* out, std::size_t shard_numel, DType dtype,
                           BlockCode code) override;
  WorkPtr reduce_scatter(const void* in, float* out, std::size_t shard_numel, DType dtype,
                         ReduceOptions options) override;
  WorkPtr all_reduce(float* data, std::size_t numel, DType dtype, float scale) override;
  WorkPtr all_reduce_coded(float* data, std::size_t numel, DType dtype, float scale,
                           BlockCode code) override;
  WorkPtr all_reduce(std::span<double> data, ReduceOp op) override;
  WorkPtr sum(double* data, std::size_t numel) override;
  WorkPtr broadcast(void* data, std::size_t nbytes, int root) override;
  WorkPtr barrier() override;
  void after(const device::EventPtr& event) override { device_->wait(*down_, *event); }

  bool spans_machines() const noexcept override { return host_->spans_machines(); }
  SentBytes sent() const noexcept override { return host_->sent(); }
  void progress() override;
  std::optional<std::string> failure() const override { return host_->failure(); }
  void abort(const std::string& reason, Errc code) noexcept override { host_->abort(reason, code); }

 private:
  class Op;
  using OpPtr = std::shared_ptr<Op>;

  /// Host memory for one chunk. Chunk n uses slot n % kSlots.
  struct Slot {
    BufferPtr contribution;    ///< this rank's input: [chunk_nbytes]
    BufferPtr gathered;        ///< all ranks' shards: [chunk_nbytes]
    device::MemoryPtr result;  ///< this rank's sums: [2 * chunk_nbytes / size]
    bool filled = false;       ///< `gathered` has been used: peers may still read it
    device::EventPtr down;     ///< the copy of the input to `contribution` is complete
    device::EventPtr up;       ///< the copy of the slot's last result to the device is complete
    WorkPtr work;              ///< the host group's collective
  };
  static constexpr std::uint64_t kSlots = 3;

  /// Part of a collective that one chunk moves, in the plan's unit.
  struct Range {
    std::size_t begin;
    std::size_t length;
  };
  /// One collective and how its three stages run for a chunk. `down` and `up` may be empty.
  struct Plan {
    std::size_t total = 1;  ///< elements or bytes of one rank's part
    std::size_t piece = 1;  ///< the same per chunk
    std::function<void(Slot&, Range)> down;
    std::function<WorkPtr(Slot&, Range)> meet;
    std::function<void(Slot&, Range)> up;
    bool gathers = false;  ///< `meet` fills `Slot::gathered`
  };

  WorkPtr issue(Plan plan);
  WorkPtr issue_on_host(std::function<WorkPtr()> call);
  /// Starts the copies down of as many chunks as there are free slots.
  void copy_down_ahead();
  /// Runs the host's collective and the copy up of the next chunk. Blocks.
  void meet_next();
  /// Runs `meet_next` for all chunks before number `end`.
  void meet_through(std::uint64_t end);
  void begin_use_of_gathered(Slot& slot);
  /// Copies sums from host memory to `out` on `up_`, with scale and accumulation.
  void put_up(float* out, const void* sums, std::size_t numel, ReduceOptions options);

  std::shared_ptr<ProcessGroup> host_;
  device::DevicePtr device_;
  std::size_t chunk_nbytes_;
  device::StreamPtr down_;
  device::StreamPtr up_;
  std::array<Slot, kSlots> slots_;
  device::MemoryPtr partial_;  ///< device memory for sums that are to be accumulated
  std::deque<OpPtr> pending_;  ///< collectives with chunks that have not met, in issue order
  // Number of chunks, counted over all collectives, that are issued, started (copy down begun), met
  // (host collective complete) and released (no peer reads this rank's contribution any more).
  // Always issued >= started >= met >= released, and started <= released + kSlots, so a slot is
  // never overwritten in use.
  std::uint64_t issued_ = 0;
  std::uint64_t started_ = 0;
  std::uint64_t met_ = 0;
  std::uint64_t released_ = 0;
};

}  // namespace acc::collectives
