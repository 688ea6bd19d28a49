#pragma once

#include "acc/runtime/initializer.hpp"
#include "device/device.hpp"
#include "sharding/engine.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace acc::model {

/// A buffer as the program registered it, and its values: whole on every rank, in the policy's
/// buffer dtype, memory of the device on which the program computes.
struct BufferRecord {
  std::string name;  ///< full name
  std::vector<std::int64_t> shape;
  std::int64_t numel = 0;
  Initializer initializer;
  bool ignored = false;
  device::MemoryPtr values = nullptr;
};

/// Allocates and initialises. With sync_module_states rank 0's values hold on all ranks, but for
/// ignored buffers. Collective.
void make_buffer(sharding::Engine& engine, BufferRecord& buffer, std::uint64_t seed);
/// values: [numel], host memory.
void set_buffer(sharding::Engine& engine, BufferRecord& buffer, std::span<const float> values);
/// [numel], in host memory.
std::vector<float> read_buffer(sharding::Engine& engine, const BufferRecord& buffer);
/// Gives all ranks what rank 0 has. Collective.
void share_buffer(sharding::Engine& engine, BufferRecord& buffer);

}  // namespace acc::model
