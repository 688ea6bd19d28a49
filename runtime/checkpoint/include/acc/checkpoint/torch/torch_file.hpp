// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/archive/archive.hpp"
#include "acc/checkpoint/files/input_file.hpp"
#include "acc/checkpoint/pickle/value.hpp"
#include "acc/checkpoint/pickle/writer.hpp"
#include "acc/checkpoint/tensor/box.hpp"
#include "acc/checkpoint/tensor/dtype.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// Archives that torch.save writes and torch.load reads: the pickle `data.pkl` and one record per
/// storage (docs/formats/torch_save.md).
namespace acc::checkpoint::torch {

/// A contiguous stretch of bytes in a file, and the checksums that cover it.
struct StoredBytes {
  std::uint64_t offset = 0;  ///< in the file
  std::uint64_t nbytes = 0;
  /// The record that contains these bytes, and its CRC-32; 0 if the writer stored none
  /// (torch.serialization.set_crc32_options(False)).
  std::uint64_t record_offset = 0;
  std::uint64_t record_nbytes = 0;
  std::uint32_t record_crc32 = 0;
  /// CRC-32 of each kBlock bytes of that record. Empty if the writer stored none: only we do, and
  /// only for records longer than one block.
  std::vector<std::uint32_t> blocks = {};
};

/// Size of a checksum block in bytes. It fits a second-level cache, so that bytes are checked while
/// they are copied.
inline constexpr std::uint64_t kBlock = std::uint64_t{256} << 10;

/// A tensor in a torch.save archive.
struct TensorRef {
  Dtype dtype = Dtype::f32;
  Shape shape;
  StoredBytes bytes;   ///< from its first element to its last one
  Shape strides = {};  ///< in elements; empty: row-major
};

/// An archive at [offset, offset + nbytes) of a file. Opening reads the directory and data.pkl, but
/// not the storages. Any thread may read. Faults throw Error(config) with the file, the entry and
/// what was found, or Unreadable: for the legacy format without zip, for classes that no reader
/// here knows.
class TorchFile {
 public:
  /// `what`: name of the entry, for messages; empty if the archive is the whole file.
  TorchFile(std::shared_ptr<const InputFile> file, std::uint64_t offset, std::uint64_t nbytes,
            std::string what = {});
  explicit TorchFile(const InputPath& path);

  [[nodiscard]] const pickle::Value& root() const noexcept { return values_.root(); }
  [[nodiscard]] const InputFile& file() const noexcept { return *file_; }
  /// True if a value is a tensor, a parameter, or a tensor with attributes.
  [[nodiscard]] static bool is_tensor(const pickle::Value& value) noexcept;
  /// Returns where a tensor's bytes are. Throws Error(config) if its storage is too small,
  /// Unreadable if its dtype is unsupported.
  [[nodiscard]] TensorRef tensor(const pickle::Value& value) const;
  /// The same. Throws Unreadable if the tensor is not in row-major order.
  [[nodiscard]] TensorRef row_major_tensor(const pickle::Value& value) const;
  /// All records with place and CRC, for verification.
  [[nodiscard]] const std::vector<archive::Record>& records() const noexcept { return records_; }
  [[nodiscard]] std::uint64_t offset() const noexcept { return offset_; }
  /// Throws Error(config) unless TorchFileWriter::finish wrote the archive with this mark. 0: none
  /// is expected.
  void check_mark(std::uint64_t mark) const;

 private:
  explicit TorchFile(std::shared_ptr<const InputFile> file);
  [[nodiscard]] std::string where() const;
  [[noreturn]] void fail(const std::string& what) const;
  /// Returns null if there is no record with this name.
  [[nodiscard]] const archive::Record* record(std::string_view name) const noexcept;
  /// Reads a whole record and checks its CRC.
  [[nodiscard]] std::vector<std::byte> payload(const archive::Record& record,
                                               const archive::ReadAt& read) const;
  [[nodiscard]] std::vector<std::uint32_t> block_checksums(const archive::Record& storage,
                                                           std::string_view key) const;

  std::shared_ptr<const InputFile> file_;
  std::uint64_t offset_, nbytes_;
  std::string what_;
  std::vector<archive::Record> records_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
  pickle::Values values_;
};

/// Returns all records of an archive with place and CRC. Reads only its directory.
std::vector<archive::Record> read_directory(const InputFile& file, std::uint64_t offset,
                                            std::uint64_t nbytes, const std::string& where);

/// Dtype and shape of a tensor to be written, as a file's only value or inside a larger one.
struct TensorSpec {
  Dtype dtype = Dtype::f32;
  Shape shape;
};

/// Pushes a tensor whose elements are in storage number `storage` (record "data/<storage>").
void push_tensor(pickle::Writer& writer, const TensorSpec& tensor, int storage);

/// A Fill calls its Sink with the elements of a tensor, row-major, in pieces of any size, in order.
using Sink = std::function<void(std::span<const std::byte> bytes)>;
using Fill = std::function<void(const Sink& sink)>;

/// Writes an archive: `data_pkl`, then the storages in order. Each storage longer than kBlock is
/// followed by a record ".acc/crc32/<storage>" with the CRCs of its blocks (little-endian u32),
/// which torch ignores. The output is deterministic; archive_layout gives its size.
class TorchFileWriter {
 public:
  TorchFileWriter(OutputFile& out, std::string data_pkl);
  /// Writes the next storage.
  void storage(std::uint64_t nbytes, const Fill& fill);
  /// `mark` tells archives apart that have the same form, such as the pieces of two ranks or of two
  /// steps. It is part of the serialization id, which torch ignores. 0: none.
  void finish(std::uint64_t mark = 0);

 private:
  void append(std::span<const std::byte> bytes);

  archive::Writer writer_;
  int storages_ = 0;
  std::uint32_t block_crc_ = 0;        ///< of the block in progress
  std::size_t block_nbytes_ = 0;       ///< bytes so far in the block in progress
  std::vector<std::uint32_t> blocks_;  ///< of the complete blocks of the current storage
};

/// Returns the size of an archive with a pickle and storages of these sizes, and the offset of each
/// storage's payload in it.
archive::Layout archive_layout(std::uint64_t data_pkl_nbytes,
                               std::span<const std::uint64_t> storage_nbytes);

/// Returns the pickle of a bare tensor, as a DCP entry has it.
std::string tensor_pickle(const TensorSpec& tensor);

}  // namespace acc::checkpoint::torch
