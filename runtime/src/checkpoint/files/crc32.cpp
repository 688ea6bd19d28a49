#include "checkpoint/files/crc32.hpp"

#include <isa-l/crc.h>

namespace acc::checkpoint {

std::uint32_t crc32(std::uint32_t crc, std::span<const std::byte> bytes) noexcept {
  return ::crc32_gzip_refl(crc, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

}  // namespace acc::checkpoint
