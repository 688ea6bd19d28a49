#pragma once

#include "checkpoint/archive/archive.hpp"
#include "checkpoint/files/input_file.hpp"
#include "checkpoint/pickle/value.hpp"
#include "checkpoint/pickle/writer.hpp"
#include "checkpoint/tensor/box.hpp"
#include "checkpoint/tensor/dtype.hpp"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// What torch.save writes and torch.load reads (checkpoint-formats 1.4): `data.pkl` and a record a
/// storage.
namespace acc::checkpoint::torch {

/// Bytes that lie in one piece in a file, and what is known to check them by.
struct StoredBytes {
  std::uint64_t offset = 0;  ///< in the file
  std::uint64_t nbytes = 0;
  /// CRC-32 of the record that they are all or a part of; 0: the writer left none
  /// (torch.serialization.set_crc32_options(False)).
  std::uint64_t record_offset = 0;
  std::uint64_t record_nbytes = 0;
  std::uint32_t record_crc32 = 0;
  /// CRC-32 of each kBlock bytes of that record; empty where the writer left none (others than we,
  /// and records of one block).
  std::vector<std::uint32_t> blocks = {};
};

/// Unit of checksums: fits a second-level cache, so that bytes are checked on their way.
inline constexpr std::uint64_t kBlock = 256 * 1024;

/// A tensor in a torch.save archive.
struct TensorRef {
  Dtype dtype = Dtype::f32;
  Shape shape;
  StoredBytes bytes;  ///< its elements, row-major
};

/// An archive in a file, [offset, offset + nbytes). Opening reads the directory and data.pkl, not
/// the storages. Faults throw Error(config) that names file, entry, and what was found; a file of
/// torch's older, unzipped form is refused by name. Any thread may read.
class TorchFile {
 public:
  /// `what`: the entry, for messages; empty for a file of its own.
  TorchFile(std::shared_ptr<const InputFile> file, std::uint64_t offset, std::uint64_t nbytes,
            std::string what = {});
  explicit TorchFile(const std::filesystem::path& path);

  [[nodiscard]] const pickle::Value& root() const noexcept { return document_.root(); }
  [[nodiscard]] const InputFile& file() const noexcept { return *file_; }
  /// Whether a value is a tensor (or a parameter or a tensor with attributes that wraps one).
  [[nodiscard]] static bool is_tensor(const pickle::Value& value) noexcept;
  /// Throws Error(config) where strides are not row-major contiguous, the storage is too small or
  /// of an unknown class.
  [[nodiscard]] TensorRef tensor(const pickle::Value& value) const;
  /// All records, for verification: "data/0", its place in the file, its CRC.
  [[nodiscard]] const std::vector<archive::Record>& records() const noexcept { return records_; }
  [[nodiscard]] std::uint64_t offset() const noexcept { return offset_; }

 private:
  explicit TorchFile(std::shared_ptr<const InputFile> file);
  [[nodiscard]] std::string where() const;
  [[noreturn]] void fail(const std::string& what) const;
  /// Null where there is none.
  [[nodiscard]] const archive::Record* record(std::string_view name) const noexcept;
  /// All of a record, checked.
  [[nodiscard]] std::vector<std::byte> payload(const archive::Record& record,
                                               const archive::ReadAt& read) const;
  [[nodiscard]] std::vector<std::uint32_t> block_checksums(const archive::Record& storage,
                                                           std::string_view key) const;

  std::shared_ptr<const InputFile> file_;
  std::uint64_t offset_, nbytes_;
  std::string what_;
  std::vector<archive::Record> records_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
  pickle::Document document_;
};

/// A tensor to be written, or the pickled description of one in a larger value.
struct TensorSpec {
  Dtype dtype = Dtype::f32;
  Shape shape;
};

/// Pushes a tensor whose elements are storage number `storage` (record "data/<storage>").
void push_tensor(pickle::Writer& writer, const TensorSpec& tensor, int storage);

/// Calls its argument with the elements of a tensor, row-major, in pieces of any size, in order.
using Sink = std::function<void(std::span<const std::byte> bytes)>;
using Fill = std::function<void(const Sink& sink)>;

/// Writes an archive: `data_pkl`, then the storages in order; beside each that is longer than
/// kBlock a record ".acc/crc32/<storage>" of its blocks' CRCs (little-endian u32), which torch
/// ignores. Deterministic; its size is `archive_nbytes`.
class TorchFileWriter {
 public:
  TorchFileWriter(OutputFile& out, std::string data_pkl);
  /// The next storage.
  void storage(std::uint64_t nbytes, const Fill& fill);
  void finish();

 private:
  void append(std::span<const std::byte> bytes);

  archive::Writer writer_;
  int storages_ = 0;
  std::uint32_t block_crc_ = 0;        ///< of the open block
  std::size_t block_nbytes_ = 0;       ///< in the open block
  std::vector<std::uint32_t> blocks_;  ///< of the complete blocks of the open storage
};

/// Bytes of the archive with a pickle of that size and those storages, and where each payload
/// begins in it.
archive::Layout archive_layout(std::uint64_t data_pkl_nbytes,
                               std::span<const std::uint64_t> storage_nbytes);

/// The pickle of a bare tensor, as a DCP entry has it.
std::string tensor_pickle(const TensorSpec& tensor);

}  // namespace acc::checkpoint::torch
