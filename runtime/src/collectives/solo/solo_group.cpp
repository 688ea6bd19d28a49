// SPDX-License-Identifier: Apache-2.0
#include "collectives/solo/solo_group.hpp"

#include "collectives/device_buffer.hpp"
#include "collectives/no_work.hpp"

#include <fmt/format.h>

namespace acc::collectives {

std::string SoloGroup::describe() const {
  return fmt::format("solo[{}]", spec_.ranks.front());
}

BufferPtr SoloGroup::allocate_gathered(std::size_t nbytes) {
  return std::make_shared<DeviceBuffer>(device_->allocate(nbytes, kGatheredMemory));
}

BufferPtr SoloGroup::allocate_contribution(std::size_t nbytes) {
  return std::make_shared<DeviceBuffer>(device_->allocate(nbytes, kContributionMemory));
}

BufferPtr SoloGroup::renew(const BufferPtr& old) {
  device_->zero(old->data(), old->nbytes(), device_->compute());
  return old;
}

// Work on the compute stream is ordered before everything that the program issues later, so a
// collective needs no wait: each returns a work that is complete.
WorkPtr SoloGroup::done() const {
  failure_.throw_if();
  return std::make_shared<NoWork>();
}

WorkPtr SoloGroup::all_gather(const void* shard, void* out, std::size_t shard_nbytes) {
  if (out != shard) {
    device_->copy(out, shard, shard_nbytes, device_->compute());
  }
  return done();
}

WorkPtr SoloGroup::reduce_scatter(const void* in, float* out, std::size_t shard_numel, DType dtype,
                                  ReduceOptions options) {
  device_->add_scaled(in, dtype, out, shard_numel, options.scale, options.accumulate,
                      device_->compute());
  return done();
}

WorkPtr SoloGroup::all_reduce(float* data, std::size_t numel, DType /*dtype*/, float scale) {
  if (scale != 1.0F) {
    device_->add_scaled(data, DType::float32, data, numel, scale, false, device_->compute());
  }
  return done();
}

WorkPtr SoloGroup::all_reduce(std::span<double> /*data*/, ReduceOp /*op*/) {
  return done();
}

WorkPtr SoloGroup::broadcast(void* /*data*/, std::size_t /*nbytes*/, int /*root*/) {
  return done();
}

WorkPtr SoloGroup::barrier() {
  return done();
}

}  // namespace acc::collectives
