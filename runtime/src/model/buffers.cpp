// SPDX-License-Identifier: Apache-2.0
#include "model/buffers.hpp"

#include "acc/base/error.hpp"
#include "model/convert_values.hpp"
#include "sharding/initial_values.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace acc::model {

using sharding::Context;

namespace {

/// The values of the buffer's initialiser in its dtype.
std::vector<std::byte> initial_values(const BufferRecord& buffer, std::uint64_t seed) {
  std::vector<float> values(static_cast<std::size_t>(buffer.numel));
  buffer.initializer(sharding::stream_of(buffer.name, seed), 0, values);
  std::vector<std::byte> bytes(buffer.nbytes());
  if (const auto bad = convert_values(values.data(), DType::float32, bytes.data(), buffer.dtype,
                                      values.size())) {
    throw Error(Errc::invalid_argument,
                fmt::format("buffer {} of {}: its initialiser gives element {} the value {}, which "
                            "this dtype cannot hold",
                            buffer.name, to_string(buffer.dtype), *bad, values[*bad]));
  }
  return bytes;
}

}  // namespace

void make_buffer(const Context& context, BufferRecord& buffer, std::uint64_t seed) {
  const bool is_new = buffer.values == nullptr;
  if (is_new) {
    buffer.values = context.device->allocate(std::max<std::size_t>(buffer.nbytes(), 1), "buffers");
  }
  // Equal on all ranks: only one branch is collective. A pure initialiser needs no broadcast.
  const bool shares = context.settings.sharding.sync_module_states && !buffer.ignored &&
                      !buffer.initializer.same_everywhere();
  if (!shares || context.groups.world->rank() == 0) {
    set_buffer(context, buffer,
               sharding::with_program(context.groups,
                                      fmt::format("the values of buffer {}", buffer.name), [&] {
                                        return is_new || buffer.initializer.repeatable()
                                                   ? initial_values(buffer, seed)
                                                   : std::vector<std::byte>(buffer.nbytes());
                                      }));
  }
  if (shares) {
    broadcast_values(context, buffer.values->data(), buffer.nbytes());
  }
}

void set_buffer(const Context& context, BufferRecord& buffer, std::span<const std::byte> values) {
  device::Device& device = *context.device;
  device.copy(buffer.values->data(), values.data(), values.size(), device.compute());
  device.record(device.compute())->synchronize();
}

std::vector<std::byte> read_buffer(const Context& context, const BufferRecord& buffer) {
  device::Device& device = *context.device;
  std::vector<std::byte> values(buffer.nbytes());
  device.copy(values.data(), buffer.values->data(), values.size(), device.compute());
  device.record(device.compute())->synchronize();
  return values;
}

void broadcast_values(const Context& context, void* data, std::size_t nbytes) {
  if (nbytes > 0) {
    context.groups.world->broadcast(data, nbytes, 0)->wait_released();
  }
}

}  // namespace acc::model
