// SPDX-License-Identifier: Apache-2.0
#include "files/object_reader.hpp"

#include <algorithm>

namespace acc::checkpoint {

namespace {

constexpr std::uint64_t kBlock = 1 << 20;
constexpr std::size_t kBlocks = 4;
// A larger read is a request of its own.
constexpr std::size_t kSmall = 256 << 10;

}  // namespace

const ObjectReader::Block& ObjectReader::block(std::uint64_t number) {
  const auto found = std::ranges::find(blocks_, number, &Block::number);
  if (found != blocks_.end()) {
    blocks_.splice(blocks_.begin(), blocks_, found);
    return blocks_.front();
  }
  Block next{number, {}};
  next.bytes.resize(std::min(kBlock, object_.nbytes - number * kBlock));
  object_store().read(name_, object_, number * kBlock, next.bytes);
  if (blocks_.size() == kBlocks) {
    blocks_.pop_back();
  }
  return blocks_.emplace_front(std::move(next));
}

void ObjectReader::read(std::uint64_t offset, std::span<std::byte> out) {
  if (out.size() > kSmall) {
    return object_store().read(name_, object_, offset, out);
  }
  const std::lock_guard lock(mutex_);
  while (!out.empty()) {
    const std::vector<std::byte>& bytes = block(offset / kBlock).bytes;
    const auto from = std::span(bytes).subspan(offset % kBlock);
    const std::size_t count = std::min(from.size(), out.size());
    std::ranges::copy(from.first(count), out.begin());
    offset += count;
    out = out.subspan(count);
  }
}

}  // namespace acc::checkpoint
