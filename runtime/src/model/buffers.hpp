// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/runtime/initializer.hpp"
#include "device/device.hpp"
#include "sharding/context.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace acc::model {

/// A registered buffer and its values: whole on every rank, in PrecisionPolicy::buffers, in memory
/// of the device on which the program computes.
struct BufferRecord {
  std::string name;  ///< full name
  std::vector<std::int64_t> shape;
  std::int64_t numel = 0;
  Initializer initializer;
  bool ignored = false;  ///< in a module that fsdp_ignored_modules names
  device::MemoryPtr values = nullptr;
};

/// Allocates and initialises the buffer. With sync_module_states all ranks get rank 0's values,
/// except for ignored buffers. Collective.
void make_buffer(const sharding::Context& context, BufferRecord& buffer, std::uint64_t seed);
/// Sets this rank's values. values: [numel], host memory. Blocks until they are on the device.
void set_buffer(const sharding::Context& context, BufferRecord& buffer,
                std::span<const float> values);
/// Returns this rank's values: [numel] in host memory.
std::vector<float> read_buffer(const sharding::Context& context, const BufferRecord& buffer);
/// Broadcasts rank 0's values to all ranks. Collective.
void share_buffer(const sharding::Context& context, BufferRecord& buffer);

}  // namespace acc::model
