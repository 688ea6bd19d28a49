// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace acc::checkpoint {

/// Returns the CRC-32 of zip and gzip (reflected polynomial 0x04C11DB7) of the bytes, continued
/// from `crc` (0 for the first bytes). Computed by ISA-L.
std::uint32_t crc32(std::uint32_t crc, std::span<const std::byte> bytes) noexcept;

/// Returns the CRC-32 of two consecutive pieces, given the CRC-32 of each and the length of the
/// second. O(log second_nbytes), computed by zlib.
std::uint32_t crc32_combine(std::uint32_t first, std::uint32_t second,
                            std::uint64_t second_nbytes) noexcept;

}  // namespace acc::checkpoint
