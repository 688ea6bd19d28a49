// SPDX-License-Identifier: Apache-2.0
#include "sharding/pools.hpp"

#include "sharding/context.hpp"
#include "sharding/gradient_offload.hpp"

#include <algorithm>
#include <cstdint>

namespace acc::sharding {
namespace {

/// Takes the smallest free buffer that is large enough; of several, the one that has been free the
/// longest. The choice depends only on the order of acquire and release, so all ranks make the same
/// one. Returns null if none is large enough.
template <typename Pointer>
Pointer take(std::deque<Pointer>& free, std::size_t nbytes) {
  const auto rank = [&](const auto& each) {
    return each->nbytes() < nbytes ? SIZE_MAX : each->nbytes();
  };
  const auto found = std::ranges::min_element(free, {}, rank);
  if (found == free.end() || (*found)->nbytes() < nbytes) {
    return nullptr;
  }
  auto buffer = *found;
  free.erase(found);
  return buffer;
}

settings::BufferCounts buffer_counts_of(const Context& context) {
  return settings::buffer_counts(true, context.overlaps());
}

}  // namespace

collectives::BufferPtr GatherPool::acquire(std::size_t nbytes) {
  if (auto buffer = take(free_, nbytes)) {
    guard_.open(buffer->data());
    return buffer;
  }
  auto made = group_.allocate_gathered(std::max(nbytes, usual_nbytes_));
  held_nbytes_ += static_cast<std::int64_t>(made->nbytes()) / made->sharers();
  return made;
}

void GatherPool::release(const collectives::BufferPtr& buffer) {
  group_.release_gathered(buffer);
  free_.push_back(buffer);
}

void GatherPool::clear() {
  free_.clear();
  held_nbytes_ = 0;
}

void GatherWindow::clear() {
  flights_.clear();
  under_way_ = 0;
}

collectives::WorkPtr GatherWindow::start(std::int64_t numel,
                                         const std::function<collectives::WorkPtr()>& gather) {
  if (max_numel_ == 0) {
    return gather();
  }
  while (!flights_.empty() &&
         (flights_.front().gather.expired() || under_way_ + numel > max_numel_)) {
    if (const auto oldest = flights_.front().gather.lock()) {
      oldest->wait();
    }
    under_way_ -= flights_.front().numel;
    flights_.pop_front();
  }
  auto started = gather();
  flights_.push_back({started, numel});
  under_way_ += numel;
  return started;
}

collectives::BufferPtr GradientPool::acquire(std::size_t nbytes) {
  group_.progress();  // the backward calls this regularly, which drives CPU back ends
  while (flights_.size() >= buffers_) {
    retire_oldest();
  }
  if (auto buffer = take(free_, nbytes)) {
    return buffer;
  }
  auto made = group_.allocate_contribution(nbytes);
  held_nbytes_ += static_cast<std::int64_t>(made->nbytes());
  return made;
}

void GradientPool::in_flight(collectives::BufferPtr buffer, collectives::WorkPtr reduction,
                             const std::string& unit, std::function<void()> reduced) {
  flights_.push_back({std::move(buffer), std::move(reduction),
                      tracer_ != nullptr ? unit : std::string(), std::move(reduced)});
  if (buffers_ == 1) {
    drain();
  }
}

void GradientPool::retire_oldest() {
  Flight flight = std::move(flights_.front());
  flights_.pop_front();
  {
    const trace::Scope scope(tracer_, "wait", "for the reduction of", flight.unit);
    flight.reduction->wait_released();
  }
  if (flight.reduced) {
    flight.reduced();
  }
  free_.push_back(std::move(flight.buffer));
}

void GradientPool::drain() {
  while (!flights_.empty()) {
    retire_oldest();
  }
}

void GradientPool::clear() {
  flights_.clear();
  free_.clear();
  held_nbytes_ = 0;
}

void FetchPool::clear() {
  free_.clear();
  held_nbytes_ = 0;
}

collectives::BufferPtr FetchPool::acquire(std::size_t nbytes) {
  if (auto fetched = take(free_, nbytes)) {
    return fetched;
  }
  held_nbytes_ += static_cast<std::int64_t>(nbytes);
  return group_.allocate_contribution(nbytes);
}

device::MemoryPtr ScratchPool::acquire(std::size_t nbytes) {
  if (auto scratch = take(free_, nbytes)) {
    guard_.open(scratch->data());
    return scratch;
  }
  held_nbytes_ += static_cast<std::int64_t>(nbytes);
  return device_.allocate(nbytes, "scratch of a unit");
}

Pools::Pools(const Context& context)
    : gathers(*context.groups.shard, *context.guard),
      publications(context.settings.sharding.allgather_bucket_size),
      gradients(*context.groups.shard, context.tracer.get(), buffer_counts_of(context)),
      fetches(*context.groups.shard),
      scratch(*context.device, *context.guard),
      sums(*context.device, *context.guard) {
  if (context.groups.secondary) {
    secondary_gathers.emplace(*context.groups.secondary, *context.guard);
  }
  if (context.offload_optimizer() || context.gradients_in_file()) {
    device::Device& device = context.swap ? *context.swap : *context.device;
    gradient_offload = std::make_unique<GradientOffload>(
        *context.groups.shard, device, *context.updater, buffer_counts_of(context));
  }
}

Pools::~Pools() = default;

void Pools::clear() {
  gathers.clear();
  if (secondary_gathers) {
    secondary_gathers->clear();
  }
  publications.clear();
  gradients.clear();
  fetches.clear();
  if (gradient_offload) {
    gradient_offload->drain();  // the next step begins with its own sums
  }
}

}  // namespace acc::sharding
