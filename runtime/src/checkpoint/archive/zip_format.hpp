#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

/// The structures of a zip file (APPNOTE 6.3, sections 4.3 and 4.5), as torch.save fills them in:
/// no times, no versions, sizes and CRC of a record behind its payload.
namespace acc::checkpoint::archive::zip {

inline constexpr std::uint32_t kLocalHeader = 0x04034b50, kDescriptor = 0x08074b50,
                               kCentralHeader = 0x02014b50, kEnd = 0x06054b50, kEnd64 = 0x06064b50,
                               kLocator64 = 0x07064b50;
inline constexpr std::size_t kLocalHeaderSize = 30, kCentralHeaderSize = 46, kEndSize = 22,
                             kEnd64Size = 56, kLocator64Size = 20;
inline constexpr std::uint16_t kZip64Field = 1;
/// Values that do not fit say this, and the zip64 field has them.
inline constexpr std::uint32_t kSaturated = 0xffffffff;
inline constexpr std::uint16_t kSaturated16 = 0xffff;
/// A payload begins at a multiple of this.
inline constexpr std::uint64_t kAlignment = 64;

/// A record as far as its headers depend on it.
struct Entry {
  std::string_view name = {};  ///< with the root folder
  std::uint64_t header = 0;    ///< where its local header begins
  std::uint64_t nbytes = 0;
  std::uint32_t crc32 = 0;

  [[nodiscard]] bool large() const noexcept { return nbytes >= kSaturated; }
  [[nodiscard]] bool far() const noexcept { return header >= kSaturated; }
};

/// Bytes of each part.
std::uint64_t local_header_nbytes(const Entry& entry);
std::uint64_t descriptor_nbytes(const Entry& entry);
std::uint64_t central_header_nbytes(const Entry& entry);
inline constexpr std::uint64_t kTrailerNbytes = kEnd64Size + kLocator64Size + kEndSize;

/// The parts themselves. The local header is padded up to the payload.
std::string local_header(const Entry& entry);
std::string descriptor(const Entry& entry);
void append_central_header(std::string& out, const Entry& entry);
std::string trailer(std::uint64_t records, std::uint64_t central_begin,
                    std::uint64_t central_nbytes);

}  // namespace acc::checkpoint::archive::zip
