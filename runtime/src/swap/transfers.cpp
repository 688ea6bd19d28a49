// SPDX-License-Identifier: Apache-2.0
#include "swap/transfers.hpp"

#include "acc/base/log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

namespace acc::swap {

void Transfers::start(Transfer& transfer, bool writes, int file, std::uint64_t offset,
                      std::byte* data, std::size_t nbytes, int buffer) {
  std::vector<Block> blocks;
  for (std::size_t at = 0; at < nbytes; at += block_nbytes_) {
    blocks.push_back({file, writes, offset + at, data + at, std::min(block_nbytes_, nbytes - at),
                      buffer, &transfer});
  }
  issue(blocks);
}

bool end_request(Block& block, std::int64_t result, std::string& problem) {
  const char* const does = block.writes ? "write" : "read";
  if (result == -EINTR || result == -EAGAIN) {
    return false;
  }
  if (result < 0) {
    const int error = static_cast<int>(-result);
    const char* const name = ::strerrorname_np(error);
    problem = fmt::format("cannot {} {} bytes at offset {}: {} ({})", does, block.nbytes,
                          block.offset, std::strerror(error), name != nullptr ? name : "errno");
    return true;
  }
  // The rest of a transfer that was cut short begins at a page, as O_DIRECT demands.
  const std::size_t moved = static_cast<std::size_t>(result) == block.nbytes
                                ? block.nbytes
                                : static_cast<std::size_t>(result) / kPage * kPage;
  if (moved == 0) {
    problem = fmt::format("cannot {} {} bytes at offset {}: only {} bytes were transferred", does,
                          block.nbytes, block.offset, result);
    return true;
  }
  block.offset += moved;
  block.data += moved;
  block.nbytes -= moved;
  return block.nbytes == 0;
}

std::unique_ptr<Transfers> make_transfers(const settings::NvmeSettings& settings,
                                          std::span<const std::span<std::byte>> buffers) {
  std::string reason;
  if (auto made = make_uring_transfers(settings, buffers, reason)) {
    return made;
  }
  logger(Component::runtime).debug("offload to nvme uses threads instead of io_uring: {}", reason);
  return make_thread_transfers(settings);
}

}  // namespace acc::swap
