// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

/// The structures of a zip file (APPNOTE 6.3, sections 4.3 and 4.5) as torch.save fills them in: no
/// times, no versions, and the sizes and the CRC of a record after its payload.
namespace acc::checkpoint::archive::zip {

inline constexpr std::uint32_t kLocalHeader = 0x04034b50, kDescriptor = 0x08074b50,
                               kCentralHeader = 0x02014b50, kEnd = 0x06054b50, kEnd64 = 0x06064b50,
                               kLocator64 = 0x07064b50;
inline constexpr std::size_t kLocalHeaderSize = 30, kCentralHeaderSize = 46, kEndSize = 22,
                             kEnd64Size = 56, kLocator64Size = 20;
inline constexpr std::uint16_t kZip64Field = 1;
/// Value of a classic field that is too small for its number; the zip64 extra field then has it.
inline constexpr std::uint32_t kSaturated = 0xffffffff;
/// Every payload begins at a multiple of this number of bytes.
inline constexpr std::uint64_t kAlignment = 64;

/// The properties of a record on which its headers depend.
struct Entry {
  std::string_view name = {};  ///< with the root folder
  std::uint64_t header = 0;    ///< offset of its local header
  std::uint64_t nbytes = 0;
  std::uint32_t crc32 = 0;

  /// True if the sizes need the zip64 field.
  [[nodiscard]] bool large() const noexcept { return nbytes >= kSaturated; }
  /// True if the offset of the local header needs the zip64 field.
  [[nodiscard]] bool far() const noexcept { return header >= kSaturated; }
};

/// Sizes of the structures in bytes.
std::uint64_t local_header_nbytes(const Entry& entry);
std::uint64_t descriptor_nbytes(const Entry& entry);
std::uint64_t central_header_nbytes(const Entry& entry);
inline constexpr std::uint64_t kTrailerNbytes = kEnd64Size + kLocator64Size + kEndSize;

/// The structures themselves. The local header includes the padding up to the payload.
std::string local_header(const Entry& entry);
std::string descriptor(const Entry& entry);
void append_central_header(std::string& out, const Entry& entry);
std::string trailer(std::uint64_t records, std::uint64_t central_begin,
                    std::uint64_t central_nbytes);

}  // namespace acc::checkpoint::archive::zip
