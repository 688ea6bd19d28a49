// SPDX-License-Identifier: Apache-2.0
#include "model/buffers.hpp"

#include "sharding/initial_values.hpp"

namespace acc::model {

using sharding::Context;

void make_buffer(const Context& context, BufferRecord& buffer, std::uint64_t seed) {
  const auto numel = static_cast<std::size_t>(buffer.numel);
  buffer.values = context.device->allocate(numel * nbytes_of(context.precision.buffers), "buffers");
  // Equal on all ranks: only one branch is collective. A pure initialiser needs no broadcast.
  const bool shares = context.settings.sharding.sync_module_states && !buffer.ignored &&
                      !buffer.initializer.same_everywhere();
  if (!shares || context.groups.world->rank() == 0) {
    std::vector<float> values(numel);
    buffer.initializer(sharding::stream_of(buffer.name, seed), 0, values);
    set_buffer(context, buffer, values);
  }
  if (shares) {
    share_buffer(context, buffer);
  }
}

// Values pass through float32 memory of the device, where the cast to the buffer's dtype runs.
void set_buffer(const Context& context, BufferRecord& buffer, std::span<const float> values) {
  device::Device& device = *context.device;
  const auto staged = device.allocate(values.size_bytes(), "buffers");
  device.copy(staged->data(), values.data(), values.size_bytes(), device.compute());
  device.cast(staged->data(), DType::float32, buffer.values->data(), context.precision.buffers,
              values.size(), device.compute());
  device.record(device.compute())->synchronize();
}

std::vector<float> read_buffer(const Context& context, const BufferRecord& buffer) {
  device::Device& device = *context.device;
  std::vector<float> values(static_cast<std::size_t>(buffer.numel));
  const auto staged = device.allocate(values.size() * sizeof(float), "buffers");
  device.cast(buffer.values->data(), context.precision.buffers, staged->data(), DType::float32,
              values.size(), device.compute());
  device.copy(values.data(), staged->data(), staged->nbytes(), device.compute());
  device.record(device.compute())->synchronize();
  return values;
}

void share_buffer(const Context& context, BufferRecord& buffer) {
  context.groups.world->broadcast(buffer.values->data(), buffer.values->nbytes(), 0)
      ->wait_released();
}

}  // namespace acc::model
