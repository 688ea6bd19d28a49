#pragma once

#include "device/device.hpp"

#include <cstddef>
#include <functional>
#include <span>

/// Memory of a device as bytes of the host, from front to back: where they are, without a copy,
/// where that is host memory (the CPU's), else in tiles through page-locked memory.
namespace acc::checkpoint {

void read_bytes(device::Device& device, const void* values, std::size_t nbytes,
                const std::function<void(std::span<const std::byte> bytes)>& visit);

/// `fill` puts bytes [at, at + to.size()) into `to`; `at` is a multiple of 256.
void write_bytes(device::Device& device, void* values, std::size_t nbytes,
                 const std::function<void(std::size_t at, std::span<std::byte> to)>& fill);

}  // namespace acc::checkpoint
