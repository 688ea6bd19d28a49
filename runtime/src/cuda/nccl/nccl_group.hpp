// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/collectives/process_group.hpp"
#include "collectives/device_buffer.hpp"
#include "collectives/first_failure.hpp"
#include "cuda/nccl/communicator.hpp"
#include "cuda/nccl/nccl_watch.hpp"
#include "cuda/nccl/registered_arena.hpp"
#include "device/device.hpp"

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>

namespace acc::rendezvous {
class Store;
}

namespace acc::cuda {

/// Process group for GPUs over NCCL. Each group has one communication stream. A collective waits,
/// by event, for what was issued to the compute stream before the call; `Work::wait` makes the
/// compute stream wait for the collective. The host never waits for the GPU.
///
/// Scalars and barriers use `host`, a group of the same ranks on host memory. It also detects dead
/// peers, which NCCL does not report. NcclWatch polls every group; on trouble it
/// aborts both the host group and the communicator, so that neither a host thread nor a GPU waits
/// forever.
class NcclGroup final : public collectives::ProcessGroup, private Watched {
 public:
  NcclGroup(collectives::GroupSpec spec, std::shared_ptr<collectives::ProcessGroup> host,
            device::DevicePtr device, std::shared_ptr<Communicator> communicator);
  ~NcclGroup() override;

  [[nodiscard]] Communicator& communicator() noexcept { return *communicator_; }

  int rank() const noexcept override { return spec_.rank; }
  int size() const noexcept override { return static_cast<int>(spec_.ranks.size()); }
  std::string describe() const override;

  bool shares_gathered_memory() const noexcept override { return false; }
  /// Both kinds of memory are registered with the communicator, so that both buffers of a gather
  /// and of a reduction are, if this NCCL version supports that.
  collectives::BufferPtr allocate_gathered(std::size_t nbytes) override {
    return allocate(nbytes, collectives::kGatheredMemory);
  }
  collectives::BufferPtr allocate_contribution(std::size_t nbytes) override {
    return allocate(nbytes, collectives::kContributionMemory);
  }
  collectives::BufferPtr renew(const collectives::BufferPtr&) override {
    collectives::refuse_renewal(describe());
  }
  void release_gathered(const collectives::BufferPtr&) override {}

  collectives::WorkPtr all_gather(const void* shard, void* out, std::size_t shard_nbytes) override;
  /// Summed by NCCL in `dtype`, scaled in float32.
  collectives::WorkPtr reduce_scatter(const void* in, float* out, std::size_t shard_numel,
                                      DType dtype, collectives::ReduceOptions options) override;
  collectives::WorkPtr all_reduce(float* data, std::size_t numel, DType dtype,
                                  float scale) override;
  collectives::WorkPtr all_reduce(std::span<double> data, ReduceOp op) override;
  collectives::WorkPtr sum(double* data, std::size_t numel) override;
  collectives::WorkPtr broadcast(void* data, std::size_t nbytes, int root) override;
  collectives::WorkPtr barrier() override;
  void after(const device::EventPtr& event) override { device_->wait(*stream_, *event); }

  bool spans_machines() const noexcept override { return host_->spans_machines(); }
  void progress() override { host_->progress(); }
  std::optional<std::string> failure() const override;
  void abort(const std::string& reason, Errc code) noexcept override;

 private:
  class Issued;
  /// A collective that may still be running on the GPU.
  struct Running {
    std::uint64_t number;  ///< number in the group, from 1
    std::string what;
    device::EventPtr ready;  ///< its input is complete
    device::EventPtr done;
    /// When the watch first saw it as the oldest collective with complete input: the timeout's
    /// start.
    std::optional<std::chrono::steady_clock::time_point> seen;
    bool doomed = false;  ///< it was still running when the host group had already failed
    bool said = false;    ///< the store has the entry that this rank waits for it
  };

  // Watched, called on the watch's thread:
  std::optional<std::string> trouble() override;
  void end(const std::string& reason) noexcept override { end(reason, Errc::collective); }
  void end(const std::string& reason, Errc code) noexcept;
  bool ended() const noexcept override { return ended_; }
  std::optional<std::string> trouble_of(Running& oldest);
  /// Publishes in the store that this rank waits for the collective, for `late_ranks` of the
  /// others.
  void say_that_it_waits(Running& oldest);
  /// Message suffix with the ranks that have not published that they wait for collective `number`.
  [[nodiscard]] std::string late_ranks(std::uint64_t number) const;

  /// Issues one NCCL call on the communication stream, between events. `after` queues more work on
  /// the stream.
  collectives::WorkPtr issue(std::string what, const Communicator::Call& call,
                             const std::function<void()>& after = {});
  /// Registered memory or, if this NCCL version does not register, plain device memory. Collective.
  collectives::BufferPtr allocate(std::size_t nbytes, const char* what);
  /// Memory for sums before they are scaled or rounded, registered. Used only on the communication
  /// stream, so successive collectives can share it. Collective.
  void* scratch(std::size_t nbytes);
  [[nodiscard]] cudaStream_t stream() const { return static_cast<cudaStream_t>(stream_->native()); }

  collectives::GroupSpec spec_;
  std::shared_ptr<collectives::ProcessGroup> host_;
  device::DevicePtr device_;
  std::shared_ptr<Communicator> communicator_;
  RegisteredArena arena_;
  device::StreamPtr stream_;
  collectives::BufferPtr scratch_;
  std::unique_ptr<rendezvous::Store> store_;  ///< used by the watch's thread only
  collectives::FirstFailure failure_;
  std::atomic<bool> ended_ = false;
  std::uint64_t issued_ = 0;
  std::mutex running_mutex_;  ///< guards running_
  std::deque<Running> running_;
};

}  // namespace acc::cuda
