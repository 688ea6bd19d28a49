// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/collectives/process_group.hpp"
#include "collectives/first_failure.hpp"
#include "collectives/group_spec.hpp"
#include "device/device.hpp"

namespace acc::collectives {

/// Process group of one rank, on any device. A gathered parameter is the shard itself, so gathers
/// move nothing. All work runs on the compute stream, so no event is needed between it and the
/// program's work.
class SoloGroup : public ProcessGroup {
 public:
  SoloGroup(GroupSpec spec, device::DevicePtr device)
      : spec_(std::move(spec)), device_(std::move(device)) {}

  int rank() const noexcept override { return 0; }
  int size() const noexcept override { return 1; }
  std::string describe() const override;

  bool shares_gathered_memory() const noexcept override { return true; }
  BufferPtr allocate_gathered(std::size_t nbytes) override;
  BufferPtr allocate_contribution(std::size_t nbytes) override;
  BufferPtr renew(const BufferPtr& old) override;
  void release_gathered(const BufferPtr&) override {}

  WorkPtr all_gather(const void* shard, void* out, std::size_t shard_nbytes) override;
  WorkPtr reduce_scatter(const void* in, float* out, std::size_t shard_numel, DType dtype,
                         ReduceOptions options) override;
  WorkPtr all_reduce(float* data, std::size_t numel, DType dtype, float scale) override;
  WorkPtr all_reduce(std::span<double> data, ReduceOp op) override;
  WorkPtr broadcast(void* data, std::size_t nbytes, int root) override;
  WorkPtr barrier() override;
  void after(const device::EventPtr& event) override { device_->wait(device_->compute(), *event); }

  void progress() override {}
  std::optional<std::string> failure() const override { return failure_.get(); }
  void abort(const std::string& reason, Errc code) noexcept override {
    failure_.set(reason, std::nullopt, code);
  }

 private:
  [[nodiscard]] WorkPtr done() const;

  GroupSpec spec_;
  device::DevicePtr device_;
  FirstFailure failure_;
};

}  // namespace acc::collectives
