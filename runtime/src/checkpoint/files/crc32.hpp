#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace acc::checkpoint {

/// CRC-32 of zip and gzip (reflected 0x04C11DB7), going on from `crc` (0 at first). ISA-L's.
std::uint32_t crc32(std::uint32_t crc, std::span<const std::byte> bytes) noexcept;

}  // namespace acc::checkpoint
