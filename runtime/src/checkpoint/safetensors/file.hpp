#pragma once

#include "acc/base/atomic_file.hpp"
#include "checkpoint/files/mapped_file.hpp"
#include "checkpoint/safetensors/header.hpp"

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// One safetensors file, mapped or written as a stream.
namespace acc::checkpoint {

/// A file opened for reading. The whole header is checked on opening, so that a truncated or
/// damaged file is refused as a whole. Every fault throws Error(config) that names the file, the
/// tensor, what was expected and what was found. Any thread may read.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  /// In the order of their bytes.
  [[nodiscard]] const std::vector<TensorEntry>& tensors() const noexcept { return tensors_; }
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const noexcept {
    return metadata_;
  }
  [[nodiscard]] bool contains(std::string_view name) const { return by_name_.contains(name); }
  /// Throws Error(config) where the file has no such tensor.
  [[nodiscard]] const TensorEntry& at(std::string_view name) const;
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

  /// Elements [offset, offset + out.size()) of a tensor of dtype F32, F16, BF16 or F64, as fp32.
  /// Touches only their bytes.
  void read_slice(std::string_view name, std::int64_t offset, std::span<float> out) const;

 private:
  std::filesystem::path path_;
  MappedFile file_;
  std::uint64_t data_begin_ = 0;
  std::vector<TensorEntry> tensors_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
  std::map<std::string, std::string> metadata_;
};

/// Writes a file as a stream: the header at once, then the tensors one after the other in the order
/// of the list. The file is complete or absent (AtomicFile).
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::filesystem::path& path, std::vector<NamedTensor> tensors,
                    const std::map<std::string, std::string>& metadata = {});

  /// The next elements of the tensor at hand, converted to its dtype; Error(config) where that is
  /// no real one. A call may not reach beyond its end: Error(internal).
  void append(std::span<const float> values);
  /// The same in its dtype; any number of bytes.
  void append(std::span<const std::byte> bytes);
  /// Throws Error(internal) where elements are missing.
  void commit();

 private:
  [[nodiscard]] std::uint64_t current_nbytes() const noexcept;
  void skip_complete() noexcept;
  void check_room(std::uint64_t nbytes) const;

  AtomicFile file_;
  std::vector<NamedTensor> tensors_;
  std::size_t current_ = 0;
  std::uint64_t written_ = 0;  ///< bytes of the current tensor
};

}  // namespace acc::checkpoint
