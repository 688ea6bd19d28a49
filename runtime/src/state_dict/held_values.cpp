// SPDX-License-Identifier: Apache-2.0
#include "state_dict/held_values.hpp"

#include "state_dict/device_bytes.hpp"

#include <algorithm>
#include <utility>

namespace acc::state_dict {
namespace {

/// Elements of an array in another form that are read at a time.
constexpr std::int64_t kTileNumel = 1 << 18;

}  // namespace

void HeldValues::read(std::int64_t begin, std::int64_t numel,
                      const std::function<void(std::span<const std::byte> bytes)>& visit) const {
  if (reader_) {
    std::vector<std::byte> tile(static_cast<std::size_t>(std::min(numel, kTileNumel)) * size_);
    for (std::int64_t at = 0; at < numel; at += kTileNumel) {
      const std::int64_t count = std::min(kTileNumel, numel - at);
      reader_(begin + at, count, tile.data());
      visit({tile.data(), static_cast<std::size_t>(count) * size_});
    }
    return;
  }
  const std::byte* const from = values_ + static_cast<std::size_t>(begin - first_) * size_;
  const std::size_t nbytes = static_cast<std::size_t>(numel) * size_;
  if (is_copy()) {
    visit({from, nbytes});
  } else {
    read_bytes(*device_, from, nbytes, visit);
  }
}

void HeldValues::narrow(std::int64_t begin, std::int64_t end) {
  numel_ = end - begin;
  if (numel_ > 0) {
    values_ += reader_ ? 0 : static_cast<std::size_t>(begin - first_) * size_;
    first_ = begin;
  }
}

void HeldValues::copy_to(device::Memory& memory, std::size_t at, sharding::LateCopy& copy,
                         device::Stream* side) {
  std::byte* const to = memory.data() + at;
  if (reader_) {
    std::exchange(reader_, nullptr)(first_, numel_, to);
  } else if (changes_ == Changes::at_any_time) {
    device_->copy(to, values_, nbytes(), device_->compute());
  } else if (side != nullptr) {
    device_->copy(to, values_, nbytes(), *side);
    copy.add({values_, nbytes()}, device_->record(*side));
  } else {
    copy.add({values_, nbytes()}, at);
  }
  values_ = to;
  device_ = nullptr;
}

}  // namespace acc::state_dict
