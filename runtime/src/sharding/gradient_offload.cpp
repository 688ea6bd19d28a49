// SPDX-License-Identifier: Apache-2.0
#include "sharding/gradient_offload.hpp"

#include <algorithm>

namespace acc::sharding {

GradientOffload::GradientOffload(collectives::ProcessGroup& group, device::Device& device,
                                 device::Device& updater, const settings::BufferCounts& counts)
    : group_(group),
      device_(device),
      updater_(updater),
      copies_(device.make_stream("copy to host")),
      max_flights_(static_cast<std::size_t>(counts.offloaded) - 1) {}

device::MemoryPtr GradientOffload::acquire(std::int64_t numel) {
  while (flights_.size() >= max_flights_) {
    retire_oldest();
  }
  const std::size_t nbytes = static_cast<std::size_t>(numel) * sizeof(float);
  const auto found = std::ranges::find_if(
      free_, [&](const Free& each) { return each.memory->nbytes() >= nbytes; });
  if (found == free_.end()) {
    held_nbytes_ += static_cast<std::int64_t>(nbytes);
    return device_.allocate(nbytes, "gradients on the way to the host");
  }
  const Free chosen = std::move(*found);
  free_.erase(found);
  group_.after(chosen.copied);
  return chosen.memory;
}

void GradientOffload::bring(device::MemoryPtr reduced, const device::EventPtr& ready, float* host,
                            std::int64_t numel, bool accumulate) {
  const std::size_t nbytes = static_cast<std::size_t>(numel) * sizeof(float);
  device::MemoryPtr staging;
  if (accumulate) {
    const auto found = std::find_if(free_staging_.begin(), free_staging_.end(),
                                    [&](const auto& each) { return each->nbytes() >= nbytes; });
    if (found != free_staging_.end()) {
      staging = *found;
      free_staging_.erase(found);
    } else {
      staging = device_.allocate_host(nbytes, "offloaded gradients");
    }
  }
  device_.wait(*copies_, ready ? *ready : *device_.record(device_.compute()));
  device_.copy(accumulate ? staging->as<float>() : host, reduced->data(), nbytes, *copies_);
  auto copied = device_.record(*copies_);
  flights_.push_back({std::move(reduced), std::move(staging), host, numel, std::move(copied)});
}

/// Ends the oldest transfer. A plain copy needs no host wait here, only `drain` waits for it. A
/// copy that is added does: the CPU updater reads the staging memory. Transfers retire in issue
/// order, so the sum over micro-steps runs in their order.
void GradientOffload::retire_oldest() {
  Flight flight = std::move(flights_.front());
  flights_.pop_front();
  free_.push_back({std::move(flight.reduced), flight.copied});
  if (flight.staging) {
    flight.copied->synchronize();
    updater_.add_scaled(flight.staging->data(), DType::float32, flight.host,
                        static_cast<std::size_t>(flight.numel), 1.0F, true, updater_.compute());
    free_staging_.push_back(std::move(flight.staging));
  }
}

void GradientOffload::drain() {
  while (!flights_.empty()) {
    retire_oldest();
  }
  device_.record(*copies_)->synchronize();
}

}  // namespace acc::sharding
