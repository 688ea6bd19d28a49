// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/device.hpp"

#include <cstddef>
#include <functional>
#include <span>

/// Access to device memory as bytes of host memory, from front to back. Memory that the host can
/// use is passed on as it is, without a copy. Other memory (of a GPU, in a file) passes in tiles
/// through host memory.
namespace acc::state_dict {

/// Calls `visit` with all bytes, in order.
void read_bytes(device::Device& device, const void* values, std::size_t nbytes,
                const std::function<void(std::span<const std::byte> bytes)>& visit);

/// Calls `fill` to put bytes [at, at + to.size()) into `to`, and copies them to the device. `at` is
/// a multiple of 256.
void write_bytes(device::Device& device, void* values, std::size_t nbytes,
                 const std::function<void(std::size_t at, std::span<std::byte> to)>& fill);

}  // namespace acc::state_dict
