#pragma once

#include "acc/base/output_file.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// Zip archives as torch.save makes them: records stored without compression, each at a multiple of
/// 64 bytes of the archive's start (checkpoint-formats 1.4). Offsets count from there: an archive
/// may lie within a file.
namespace acc::checkpoint::archive {

struct Record {
  std::string name;  ///< without the root folder: "data.pkl", "data/0"
  std::uint64_t offset = 0;
  std::uint64_t nbytes = 0;
  std::uint32_t crc32 = 0;  ///< 0 with bytes: the writer left none
};

/// Gives bytes of an archive: [offset, offset + out.size()).
using ReadAt = std::function<void(std::uint64_t offset, std::span<std::byte> out)>;

/// The records of an archive of `nbytes`, from its central directory and its local headers (zip64
/// too). Reads those alone. Throws Error(config) that begins with `where`: no archive, truncated,
/// compressed or encrypted records, offsets outside, records that overlap.
std::vector<Record> read_records(const ReadAt& read, std::uint64_t nbytes,
                                 const std::string& where);

/// Writes an archive as a stream, byte for byte a function of names and payloads.
class Writer {
 public:
  /// `out` is written from where it stands.
  explicit Writer(OutputFile& out, std::string root = "archive");

  /// A record at once.
  void add(std::string_view name, std::span<const std::byte> payload);
  void add(std::string_view name, std::string_view payload);
  /// A record of `nbytes` whose payload comes in pieces.
  void begin(std::string_view name, std::uint64_t nbytes);
  void append(std::span<const std::byte> payload);
  /// The same for who knows the CRC-32 of these bytes already.
  void append(std::span<const std::byte> payload, std::uint32_t crc32);
  void end();
  /// The central directory. The archive is complete.
  void finish();

  /// Those that were written.
  [[nodiscard]] const std::vector<Record>& records() const noexcept { return records_; }

 private:
  OutputFile& out_;
  std::string root_;
  std::uint64_t start_;  ///< of the archive in `out`
  std::vector<Record> records_;
  std::vector<std::uint64_t> headers_;  ///< where each record's local header begins
  std::uint64_t left_ = 0;              ///< of the open record
};

/// What Writer makes of records with these names and sizes.
struct RecordSize {
  std::string name;
  std::uint64_t nbytes = 0;
};
struct Layout {
  std::vector<std::uint64_t> offsets;  ///< of the payloads
  std::uint64_t nbytes = 0;            ///< of the archive
};
Layout lay_out(std::span<const RecordSize> records, std::string_view root = "archive");

}  // namespace acc::checkpoint::archive
