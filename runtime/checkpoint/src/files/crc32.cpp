// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/files/crc32.hpp"

#include <isa-l/crc.h>
#include <zlib.h>

// ISA-L uses the processor's carry-less multiplication. zlib has the function that combines two
// checksums, which ISA-L lacks.
namespace acc::checkpoint {

std::uint32_t crc32(std::uint32_t crc, std::span<const std::byte> bytes) noexcept {
  return ::crc32_gzip_refl(crc, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

std::uint32_t crc32_combine(std::uint32_t first, std::uint32_t second,
                            std::uint64_t second_nbytes) noexcept {
  return static_cast<std::uint32_t>(
      ::crc32_combine64(first, second, static_cast<std::int64_t>(second_nbytes)));
}

}  // namespace acc::checkpoint
