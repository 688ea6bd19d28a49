#pragma once

#include "acc/collectives/process_group.hpp"
#include "collectives/first_failure.hpp"
#include "cuda/nccl/communicator.hpp"
#include "cuda/nccl/nccl_watch.hpp"
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

/// GPUs over NCCL. Collectives run on one communication stream a group, between events: after what
/// was issued to the compute stream before the call, before what comes after `wait`. Figures and
/// barriers go over `host`, the same ranks on host memory, which also tells of dead peers; a rank
/// that meets trouble aborts both, so that neither a host nor a GPU waits for ever.
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
  /// Registered with NCCL where its version can.
  collectives::BufferPtr allocate_gathered(std::size_t nbytes) override;
  collectives::BufferPtr allocate_contribution(std::size_t nbytes) override;
  void release_gathered(const collectives::BufferPtr&) override {}

  collectives::WorkPtr all_gather(const void* shard, void* out, std::size_t shard_nbytes) override;
  /// Summed by NCCL in `dtype`, scaled in float32.
  collectives::WorkPtr reduce_scatter(const void* in, float* out, std::size_t shard_numel,
                                      DType dtype, collectives::ReduceOptions options) override;
  collectives::WorkPtr all_reduce(float* data, std::size_t numel, float scale) override;
  collectives::WorkPtr all_reduce(std::span<double> data, ReduceOp op) override;
  collectives::WorkPtr broadcast(void* data, std::size_t nbytes, int root) override;
  collectives::WorkPtr barrier() override;
  void after(const device::EventPtr& event) override { device_->wait(*stream_, *event); }

  void progress() override { host_->progress(); }
  std::optional<std::string> failure() const override;
  void abort(const std::string& reason) noexcept override;

 private:
  class Issued;
  /// A collective that may still run.
  struct Running {
    std::uint64_t number;  ///< of the group's collectives, from 1
    std::string what;
    device::EventPtr ready;  ///< its input is there
    device::EventPtr done;
    std::optional<std::chrono::steady_clock::time_point> seen;  ///< first, by the watch, as oldest
    bool doomed = false;  ///< seen when a peer was gone already
    bool said = false;    ///< in the store, that this rank waits for its end
  };

  std::optional<std::string> trouble() override;
  void end(const std::string& reason) noexcept override;
  bool ended() const noexcept override { return ended_; }
  std::optional<std::string> trouble_of(Running& oldest);
  void say_that_it_waits(Running& oldest);
  [[nodiscard]] std::string late_ranks(std::uint64_t number) const;

  collectives::WorkPtr issue(std::string what, const Communicator::Call& call,
                             const std::function<void()>& after = {});
  float* scratch(std::size_t nbytes);
  [[nodiscard]] cudaStream_t stream() const { return static_cast<cudaStream_t>(stream_->native()); }

  collectives::GroupSpec spec_;
  std::shared_ptr<collectives::ProcessGroup> host_;
  device::DevicePtr device_;
  std::shared_ptr<Communicator> communicator_;
  device::StreamPtr stream_;
  device::MemoryPtr scratch_;                 ///< of reductions, in the order of the stream
  std::unique_ptr<rendezvous::Store> store_;  ///< the watch's
  collectives::FirstFailure failure_;
  std::atomic<bool> ended_ = false;
  std::uint64_t issued_ = 0;
  std::mutex running_mutex_;  ///< guards running_
  std::deque<Running> running_;
};

}  // namespace acc::cuda
