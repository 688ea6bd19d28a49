#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace acc::checkpoint {

/// CRC-32 of zip and gzip (reflected 0x04C11DB7), going on from `crc` (0 at first). ISA-L's.
std::uint32_t crc32(std::uint32_t crc, std::span<const std::byte> bytes) noexcept;

/// Of two pieces in a row, from the CRC-32 of each and the bytes of the second. zlib's.
std::uint32_t crc32_combine(std::uint32_t first, std::uint32_t second,
                            std::uint64_t second_nbytes) noexcept;

}  // namespace acc::checkpoint
