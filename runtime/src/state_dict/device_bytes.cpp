// SPDX-License-Identifier: Apache-2.0
#include "state_dict/device_bytes.hpp"

#include <algorithm>

namespace acc::state_dict {
namespace {

// Copies are done in tiles of 16 MiB through page-locked memory, one at a time.
constexpr std::size_t kTileBytes = 16 << 20;

}  // namespace

void read_bytes(device::Device& device, const void* values, std::size_t nbytes,
                const std::function<void(std::span<const std::byte> bytes)>& visit) {
  const auto* const from = static_cast<const std::byte*>(values);
  if (device.host_can_use(values)) {
    visit({from, nbytes});
    return;
  }
  const auto tile = device.allocate_host(std::min(nbytes, kTileBytes), "checkpoint");
  for (std::size_t at = 0; at < nbytes; at += kTileBytes) {
    const std::size_t size = std::min(kTileBytes, nbytes - at);
    device.copy(tile->data(), from + at, size, device.compute());
    device.record(device.compute())->synchronize();
    visit({tile->data(), size});
  }
}

// The tile is reused, so each copy must be complete before the next `fill`.
void write_bytes(device::Device& device, void* values, std::size_t nbytes,
                 const std::function<void(std::size_t at, std::span<std::byte> to)>& fill) {
  auto* const to = static_cast<std::byte*>(values);
  if (device.host_can_use(values)) {
    fill(0, {to, nbytes});
    return;
  }
  const auto tile = device.allocate_host(std::min(nbytes, kTileBytes), "checkpoint");
  for (std::size_t at = 0; at < nbytes; at += kTileBytes) {
    const std::size_t size = std::min(kTileBytes, nbytes - at);
    fill(at, {tile->data(), size});
    device.copy(to + at, tile->data(), size, device.compute());
    device.record(device.compute())->synchronize();
  }
}

}  // namespace acc::state_dict
