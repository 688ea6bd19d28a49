// SPDX-License-Identifier: Apache-2.0
#include "archive/zip_format.hpp"

#include <algorithm>

namespace acc::checkpoint::archive::zip {
namespace {

/// Flag 0x0800: the name is UTF-8. Flag 0x0008: sizes and CRC are 0 in the local header and follow
/// the payload in a data descriptor; set for records with bytes.
std::uint16_t flags_of(const Entry& entry) {
  return entry.nbytes == 0 ? 0x0800 : 0x0808;
}
/// "Version made by" and "version needed" that torch's zip library writes into the zip64 end
/// record.
constexpr std::uint16_t kMadeBy = 0x031e, kNeeded = 0x002d;

template <typename T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Writes a field that holds all ones if the value does not fit; the zip64 field then has the value.
template <typename Small>
void put_saturated(std::string& out, std::uint64_t value) {
  put(out, static_cast<Small>(std::min<std::uint64_t>(value, static_cast<Small>(~Small{0}))));
}

// Size of the zip64 extra field: header of 4 bytes, two sizes for a large record, and the offset of
// the local header if it lies beyond 4 GiB.
std::size_t zip64_nbytes(const Entry& entry) {
  if (!entry.large() && !entry.far()) {
    return 0;
  }
  return 4 + (entry.large() ? 16U : 0U) + (entry.far() ? 8U : 0U);
}

void put_zip64(std::string& out, const Entry& entry) {
  const std::size_t nbytes = zip64_nbytes(entry);
  if (nbytes == 0) {
    return;
  }
  put(out, kZip64Field);
  put(out, static_cast<std::uint16_t>(nbytes - 4));
  if (entry.large()) {
    put(out, entry.nbytes), put(out, entry.nbytes);
  }
  if (entry.far()) {
    put(out, entry.header);
  }
}

/// Number of fill bytes in the extra field "FB", so that the payload is aligned.
std::uint64_t padding(const Entry& entry) {
  const std::uint64_t start =
      entry.header + kLocalHeaderSize + entry.name.size() + zip64_nbytes(entry) + 4;
  return (kAlignment - start % kAlignment) % kAlignment;
}

}  // namespace

std::uint64_t local_header_nbytes(const Entry& entry) {
  return kLocalHeaderSize + entry.name.size() + zip64_nbytes(entry) + 4 + padding(entry);
}

std::uint64_t descriptor_nbytes(const Entry& entry) {
  if (entry.nbytes == 0) {
    return 0;
  }
  return zip64_nbytes(entry) == 0 ? 16 : 24;
}

std::uint64_t central_header_nbytes(const Entry& entry) {
  return kCentralHeaderSize + entry.name.size() + zip64_nbytes(entry);
}

std::string local_header(const Entry& entry) {
  std::string out;
  put(out, kLocalHeader);
  put(out, std::uint16_t{0});
  put(out, flags_of(entry));
  out.append(2 + 4 + 4 + 4 + 4, '\0');  // method (stored), time, CRC and both sizes are 0
  put(out, static_cast<std::uint16_t>(entry.name.size()));
  put(out, static_cast<std::uint16_t>(zip64_nbytes(entry) + 4 + padding(entry)));
  out += entry.name;
  put_zip64(out, entry);
  out += "FB";
  put(out, static_cast<std::uint16_t>(padding(entry)));
  out.append(padding(entry), 'Z');
  return out;
}

std::string descriptor(const Entry& entry) {
  std::string out;
  if (entry.nbytes == 0) {
    return out;
  }
  put(out, kDescriptor);
  put(out, entry.crc32);
  for (int i = 0; i < 2; ++i) {
    if (zip64_nbytes(entry) == 0) {
      put(out, static_cast<std::uint32_t>(entry.nbytes));
    } else {
      put(out, entry.nbytes);
    }
  }
  return out;
}

void append_central_header(std::string& out, const Entry& entry) {
  put(out, kCentralHeader);
  out.append(2 + 2, '\0');  // version made by, version needed
  put(out, flags_of(entry));
  out.append(2 + 4, '\0');  // method (stored), time
  put(out, entry.crc32);
  put_saturated<std::uint32_t>(out, entry.nbytes);
  put_saturated<std::uint32_t>(out, entry.nbytes);
  put(out, static_cast<std::uint16_t>(entry.name.size()));
  put(out, static_cast<std::uint16_t>(zip64_nbytes(entry)));
  out.append(2 + 2 + 2 + 4, '\0');  // comment, disk number, attributes
  put_saturated<std::uint32_t>(out, entry.header);
  out += entry.name;
  put_zip64(out, entry);
}

std::string trailer(std::uint64_t records, std::uint64_t central_begin,
                    std::uint64_t central_nbytes) {
  std::string out;
  put(out, kEnd64);
  put(out, std::uint64_t{kEnd64Size - 12});  // size of this record after this field
  put(out, kMadeBy);
  put(out, kNeeded);
  out.append(4 + 4, '\0');  // disk numbers
  put(out, records);
  put(out, records);
  put(out, central_nbytes);
  put(out, central_begin);
  put(out, kLocator64);
  put(out, std::uint32_t{0});
  put(out, central_begin + central_nbytes);  // offset of the zip64 end record
  put(out, std::uint32_t{1});                // number of disks
  put(out, kEnd);
  out.append(2 + 2, '\0');
  put_saturated<std::uint16_t>(out, records);
  put_saturated<std::uint16_t>(out, records);
  put_saturated<std::uint32_t>(out, central_nbytes);
  put_saturated<std::uint32_t>(out, central_begin);
  put(out, std::uint16_t{0});
  return out;
}

}  // namespace acc::checkpoint::archive::zip
