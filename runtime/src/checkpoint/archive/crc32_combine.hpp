#pragma once

#include <cstdint>

namespace acc::checkpoint::archive {

/// CRC-32 of two pieces in a row from the CRC of each and the bytes of the second.
std::uint32_t crc32_combine(std::uint32_t first, std::uint32_t second,
                            std::uint64_t second_nbytes) noexcept;

}  // namespace acc::checkpoint::archive
