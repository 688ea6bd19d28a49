// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/archive/archive.hpp"
#include "acc/checkpoint/files/errors.hpp"
#include "archive/zip_format.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

// Reads a zip archive from its end: the end record gives the place of the central directory, which
// lists all records with their sizes, CRCs and local headers. Only the local header gives the place
// of the payload, because its extra field (padding) may have another length than the one in the
// directory. A zip64 end record, if there is one, has the values that do not fit in the classic end
// record. All offsets come from an untrusted file and are checked before use.
namespace acc::checkpoint::archive {
namespace {

using zip::kSaturated;

template <typename T>
T get(std::string_view bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

struct CentralDirectory {
  std::uint64_t begin = 0, nbytes = 0, records = 0;
};

/// A record as the central directory lists it.
struct Listed {
  std::string_view name;
  std::uint64_t header = 0, nbytes = 0;
  std::uint32_t crc32 = 0;
};

class Reader {
 public:
  Reader(const ReadAt& read, std::uint64_t nbytes, const std::string& where)
      : read_(read), nbytes_(nbytes), where_(where) {}

  std::vector<Record> records() {
    const CentralDirectory central = find_central();
    const std::string directory = bytes(central.begin, central.nbytes);
    std::string_view rest = directory;
    std::vector<Record> found;
    std::vector<std::pair<std::uint64_t, Record>> placed;
    std::string root;
    for (std::uint64_t i = 0; i < central.records; ++i) {
      const Listed listed = take_listed(rest);
      if (i == 0) {
        root = listed.name.substr(0, listed.name.find('/') + 1);
      }
      Record record = this->record(listed, central.begin);
      record.name = without_root(listed.name, root);
      placed.emplace_back(listed.header, record);
      found.push_back(std::move(record));
    }
    if (!rest.empty()) {
      fail("central directory lists more than " + std::to_string(central.records) + " records");
    }
    check_apart(std::move(placed));
    return found;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(Errc::config, where_ + ": " + what);
  }
  [[noreturn]] void refuse(const std::string& what) const {
    throw Unreadable(where_ + ": " + what);
  }

  std::string bytes(std::uint64_t offset, std::uint64_t nbytes) const {
    std::string out(nbytes, '\0');
    read_(offset, std::as_writable_bytes(std::span(out)));
    return out;
  }

  /// Returns the offset of the end record; `tail` receives the bytes from there.
  std::uint64_t find_end(std::string& tail) const {
    if (nbytes_ < zip::kEndSize) {
      fail("not a torch.save archive: only " + std::to_string(nbytes_) + " bytes");
    }
    // The end record is the last one, unless the archive has a comment of up to 64 KiB after it.
    // The first round reads 22 bytes, the second one searches backwards through the last 64 KiB.
    for (const std::uint64_t back :
         {std::uint64_t{zip::kEndSize}, std::uint64_t{zip::kEndSize} + 65535}) {
      const std::uint64_t begin = nbytes_ - std::min(back, nbytes_);
      tail = bytes(begin, nbytes_ - begin);
      for (std::size_t at = tail.size() - zip::kEndSize + 1; at-- > 0;) {
        if (get<std::uint32_t>(tail, at) == zip::kEnd &&
            at + zip::kEndSize + get<std::uint16_t>(tail, at + 20) == tail.size()) {
          tail.erase(0, at);
          return begin + at;
        }
      }
    }
    fail("not a torch.save archive, or a truncated one: no end record in " +
         std::to_string(nbytes_) + " bytes");
  }

  CentralDirectory find_central() const {
    std::string tail;
    const std::uint64_t end = find_end(tail);
    if (get<std::uint16_t>(tail, 4) != 0 || get<std::uint16_t>(tail, 6) != 0) {
      refuse("archive split into several parts, which is not supported");
    }
    CentralDirectory central{get<std::uint32_t>(tail, 16), get<std::uint32_t>(tail, 12),
                             get<std::uint16_t>(tail, 10)};
    apply_zip64(end, central);
    if (central.nbytes > end || central.begin > end - central.nbytes) {
      fail("central directory lies outside of the archive");
    }
    // Bounds the number of records by the directory's size, before a loop or allocation uses it.
    if (central.records > central.nbytes / zip::kCentralHeaderSize) {
      fail("central directory of " + std::to_string(central.nbytes) + " bytes is too small for " +
           std::to_string(central.records) + " records");
    }
    return central;
  }

  /// Replaces the values of the classic end record by those of the zip64 end record, if the archive
  /// has one. Its locator stands directly before the classic end record.
  void apply_zip64(std::uint64_t end, CentralDirectory& central) const {
    if (end < zip::kLocator64Size + zip::kEnd64Size) {
      return;
    }
    const std::string locator = bytes(end - zip::kLocator64Size, zip::kLocator64Size);
    if (get<std::uint32_t>(locator, 0) != zip::kLocator64) {
      return;
    }
    const auto at = get<std::uint64_t>(locator, 8);
    if (at > end - zip::kLocator64Size - zip::kEnd64Size) {
      fail("zip64 end record lies outside of the archive");
    }
    const std::string record = bytes(at, zip::kEnd64Size);
    if (get<std::uint32_t>(record, 0) != zip::kEnd64) {
      fail("no zip64 end record where its locator points");
    }
    central = {get<std::uint64_t>(record, 48), get<std::uint64_t>(record, 40),
               get<std::uint64_t>(record, 32)};
  }

  Listed take_listed(std::string_view& rest) const {
    if (rest.size() < zip::kCentralHeaderSize ||
        get<std::uint32_t>(rest, 0) != zip::kCentralHeader) {
      fail("damaged central directory");
    }
    const std::uint64_t name = get<std::uint16_t>(rest, 28), extra = get<std::uint16_t>(rest, 30);
    const std::uint64_t length =
        zip::kCentralHeaderSize + name + extra + get<std::uint16_t>(rest, 32);
    if (length > rest.size()) {
      fail("damaged central directory: a name reaches beyond it");
    }
    Listed listed{.name = rest.substr(zip::kCentralHeaderSize, name),
                  .header = get<std::uint32_t>(rest, 42),
                  .nbytes = get<std::uint32_t>(rest, 24),
                  .crc32 = get<std::uint32_t>(rest, 16)};
    const auto flags = get<std::uint16_t>(rest, 8), method = get<std::uint16_t>(rest, 10);
    constexpr unsigned kEncrypted = 0x0001 | 0x0040 | 0x2000;
    if ((flags & kEncrypted) != 0) {
      refuse("record " + std::string(listed.name) + " is encrypted");
    }
    if (method != 0) {
      refuse("record " + std::string(listed.name) + " is compressed (method " +
             std::to_string(method) + "), torch.save stores");
    }
    apply_zip64_field(rest.substr(zip::kCentralHeaderSize + name, extra), listed,
                      get<std::uint32_t>(rest, 20));
    rest.remove_prefix(length);
    return listed;
  }

  /// Reads the sizes and the offset that the classic fields do not hold (0xffffffff) from the zip64
  /// extra field, in the fixed order uncompressed size, compressed size, offset. `stored` is the
  /// compressed size, which must equal the uncompressed one for a stored record.
  void apply_zip64_field(std::string_view extra, Listed& listed, std::uint64_t stored) const {
    std::string_view field;
    while (extra.size() >= 4) {
      const auto length = get<std::uint16_t>(extra, 2);
      if (length > extra.size() - 4U) {
        fail("extra field reaches beyond its header");
      }
      if (get<std::uint16_t>(extra, 0) == zip::kZip64Field) {
        field = extra.substr(4, length);
      }
      extra.remove_prefix(4U + length);
    }
    const auto take = [&](std::uint64_t& value) {
      if (value != kSaturated) {
        return;
      }
      if (field.size() < 8) {
        fail("record " + std::string(listed.name) + " has no zip64 field with its size or offset");
      }
      value = get<std::uint64_t>(field, 0);
      field.remove_prefix(8);
    };
    take(listed.nbytes);
    take(stored);
    take(listed.header);
    if (stored != listed.nbytes) {
      fail("record " + std::string(listed.name) + " has two different sizes");
    }
  }

  /// Adds the place of the payload, which only the local header gives. `limit`: offset of the
  /// central directory, before which all records must end.
  Record record(const Listed& listed, std::uint64_t limit) const {
    const std::string name(listed.name);
    const std::uint64_t header_nbytes = zip::kLocalHeaderSize + name.size();
    if (listed.header > limit || header_nbytes > limit - listed.header) {
      fail("record " + name + " lies outside of the archive");
    }
    const std::string header = bytes(listed.header, header_nbytes);
    if (get<std::uint32_t>(header, 0) != zip::kLocalHeader ||
        get<std::uint16_t>(header, 26) != name.size() ||
        header.compare(zip::kLocalHeaderSize, name.size(), name) != 0) {
      fail("no local header of record " + name + " at byte " + std::to_string(listed.header));
    }
    const std::uint64_t offset = listed.header + header_nbytes + get<std::uint16_t>(header, 28);
    if (offset > limit || listed.nbytes > limit - offset) {
      fail("record " + name + " of " + std::to_string(listed.nbytes) +
           " bytes lies outside of the archive");
    }
    return {name, offset, listed.nbytes, listed.crc32};
  }

  /// torch accepts any name for the root folder, but all records must share it.
  std::string_view without_root(std::string_view name, std::string_view root) const {
    if (!name.starts_with(root)) {
      fail("record " + std::string(name) + " is not in the root folder " + std::string(root));
    }
    return name.substr(root.size());
  }

  /// Checks that no byte (header or payload) belongs to two records, and that names are unique.
  void check_apart(std::vector<std::pair<std::uint64_t, Record>> placed) const {
    std::sort(placed.begin(), placed.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    for (std::size_t i = 1; i < placed.size(); ++i) {
      const Record& before = placed[i - 1].second;
      if (before.offset + before.nbytes > placed[i].first) {
        fail("records " + before.name + " and " + placed[i].second.name + " overlap");
      }
    }
    std::sort(placed.begin(), placed.end(),
              [](const auto& a, const auto& b) { return a.second.name < b.second.name; });
    for (std::size_t i = 1; i < placed.size(); ++i) {
      const std::string& name = placed[i].second.name;
      if (placed[i - 1].second.name == name) {
        fail("record " + name + " occurs twice");
      }
    }
  }

  const ReadAt& read_;
  std::uint64_t nbytes_;
  const std::string& where_;
};

}  // namespace

std::vector<Record> read_records(const ReadAt& read, std::uint64_t nbytes,
                                 const std::string& where) {
  return Reader(read, nbytes, where).records();
}

}  // namespace acc::checkpoint::archive
