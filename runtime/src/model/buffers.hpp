// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/runtime/initializer.hpp"
#include "device/device.hpp"
#include "sharding/context.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace acc::model {

/// A registered buffer and its values: whole on every rank, in memory of the device on which the
/// program computes.
struct BufferRecord {
  std::string name;                       ///< full name
  std::vector<std::string> aliases = {};  ///< further full names
  std::vector<std::int64_t> shape;
  std::int64_t numel = 0;
  DType dtype = DType::float32;
  Initializer initializer;
  bool ignored = false;  ///< in a module that fsdp_ignored_modules names
  device::MemoryPtr values = nullptr;

  [[nodiscard]] std::size_t nbytes() const {
    return static_cast<std::size_t>(numel) * nbytes_of(dtype);
  }
  /// All names, its own first.
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> all = {name};
    all.insert(all.end(), aliases.begin(), aliases.end());
    return all;
  }
};

/// Allocates and initialises the buffer. With sync_module_states all ranks get rank 0's values,
/// except for ignored buffers. Collective. Throws Error(invalid_argument) if its dtype cannot hold
/// a value of the initialiser.
void make_buffer(const sharding::Context& context, BufferRecord& buffer, std::uint64_t seed);
/// Sets this rank's values. values: [nbytes], host memory. Blocks until they are on the device.
void set_buffer(const sharding::Context& context, BufferRecord& buffer,
                std::span<const std::byte> values);
/// Returns this rank's values: [nbytes] in host memory.
std::vector<std::byte> read_buffer(const sharding::Context& context, const BufferRecord& buffer);
/// Broadcasts rank 0's bytes to all ranks. data: [nbytes], memory of the device. Collective.
void broadcast_values(const sharding::Context& context, void* data, std::size_t nbytes);

}  // namespace acc::model
