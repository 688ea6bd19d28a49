#include "sharding/gradient_offload.hpp"

#include <algorithm>

namespace acc::sharding {

GradientOffload::GradientOffload(Engine& engine)
    : engine_(engine), copies_(engine.device->make_stream("copy to host")) {}

device::MemoryPtr GradientOffload::acquire(std::int64_t numel) {
  while (flights_.size() >= kInFlight) {
    retire_oldest();
  }
  return engine_.scratch->acquire(static_cast<std::size_t>(numel) * sizeof(float));
}

void GradientOffload::bring(device::MemoryPtr reduced, float* host, std::int64_t numel,
                            bool accumulate) {
  device::Device& device = *engine_.device;
  const std::size_t nbytes = static_cast<std::size_t>(numel) * sizeof(float);
  device::MemoryPtr staging;
  if (accumulate) {
    const auto found = std::find_if(free_staging_.begin(), free_staging_.end(),
                                    [&](const auto& each) { return each->nbytes() >= nbytes; });
    if (found != free_staging_.end()) {
      staging = *found;
      free_staging_.erase(found);
    } else {
      staging = device.allocate_host(nbytes, "offloaded gradients");
    }
  }
  // Work issued to the compute stream from now on follows the reduction; so must the copy.
  device.wait(*copies_, *device.record(device.compute()));
  device.copy(accumulate ? staging->as<float>() : host, reduced->data(), nbytes, *copies_);
  auto copied = device.record(*copies_);
  flights_.push_back({std::move(reduced), std::move(staging), host, numel, std::move(copied)});
}

/// Ends the oldest transfer. A plain copy needs no host wait here, only `drain` waits for it. A
/// copy that is added does: the CPU updater reads the staging memory. Transfers retire in issue
/// order, so the sum over micro-steps runs in their order.
void GradientOffload::retire_oldest() {
  Flight flight = std::move(flights_.front());
  flights_.pop_front();
  // Scratch memory is reused in the order of the compute stream.
  engine_.device->wait(engine_.device->compute(), *flight.copied);
  engine_.scratch->release(std::move(flight.reduced));
  if (flight.staging) {
    flight.copied->synchronize();
    engine_.updater->add_scaled(flight.staging->data(), DType::float32, flight.host,
                                static_cast<std::size_t>(flight.numel), 1.0F, true,
                                engine_.updater->compute());
    free_staging_.push_back(std::move(flight.staging));
  }
}

void GradientOffload::drain() {
  while (!flights_.empty()) {
    retire_oldest();
  }
  engine_.device->record(*copies_)->synchronize();
}

}  // namespace acc::sharding
