// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/output_file.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// Zip archives as torch.save makes them: records stored without compression, each payload at a
/// multiple of 64 bytes from the start of the archive (docs/formats/torch_save.md). All offsets
/// count from that start, because an archive may lie within a larger file.
namespace acc::checkpoint::archive {

struct Record {
  std::string name;  ///< without the root folder: "data.pkl", "data/0"
  std::uint64_t offset = 0;
  std::uint64_t nbytes = 0;
  std::uint32_t crc32 = 0;  ///< of the payload; 0 although it has bytes: the writer stored none
};

/// Reads bytes [offset, offset + out.size()) of an archive.
using ReadAt = std::function<void(std::uint64_t offset, std::span<std::byte> out)>;

/// Returns the records of an archive of `nbytes`, in the order of its central directory (zip64 is
/// supported). Reads only that directory and the local headers. Throws Error(config) that begins
/// with `where` for: no archive, a truncated one, compressed or encrypted records, offsets outside
/// of the archive, records that overlap.
std::vector<Record> read_records(const ReadAt& read, std::uint64_t nbytes,
                                 const std::string& where);

/// Writes an archive as a stream. The bytes are a function of names and payloads alone.
class Writer {
 public:
  /// Writes to `out` from its current position, which is the start of the archive.
  explicit Writer(OutputFile& out, std::string root = "archive");

  /// Adds a whole record.
  void add(std::string_view name, std::span<const std::byte> payload);
  void add(std::string_view name, std::string_view payload);
  /// Starts a record of `nbytes`, whose payload comes in pieces by `append`.
  void begin(std::string_view name, std::uint64_t nbytes);
  /// Returns the CRC-32 of the piece. Pieces should fit the processor's cache.
  std::uint32_t append(std::span<const std::byte> payload);
  void end();
  /// Writes the central directory and the end records, which completes the archive.
  void finish();

  /// Records written so far.
  [[nodiscard]] const std::vector<Record>& records() const noexcept { return records_; }

 private:
  OutputFile& out_;
  std::string root_;
  std::uint64_t start_;  ///< position in `out` of the archive's first byte
  std::vector<Record> records_;
  std::vector<std::uint64_t> headers_;  ///< where each record's local header begins
  std::uint64_t left_ = 0;              ///< bytes still missing in the open record
};

/// Name and size of a record, and the places that Writer gives to records with these.
struct RecordSize {
  std::string name;
  std::uint64_t nbytes = 0;
};
struct Layout {
  std::vector<std::uint64_t> offsets;  ///< of the payloads, from the start of the archive
  std::uint64_t nbytes = 0;            ///< of the whole archive
};
Layout lay_out(std::span<const RecordSize> records, std::string_view root = "archive");

}  // namespace acc::checkpoint::archive
