// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/atomic_file.hpp"
#include "acc/checkpoint/safetensors/header.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// Reader (memory-mapped) and writer (streaming) of one safetensors file.
namespace acc::checkpoint {

/// A whole regular file, mapped read-only for the lifetime of the object. Errors are Error(config).
/// Reading pages beyond a file that was truncated later raises SIGBUS.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// A file opened for reading. Opening checks the whole header, so that a truncated or damaged file
/// is refused at once. Any thread may read. Every fault throws Error(config) with the file, the
/// tensor, what was expected and what was found.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  /// Tensors in the order of their bytes.
  [[nodiscard]] const std::vector<TensorEntry>& tensors() const noexcept { return tensors_; }
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const noexcept {
    return metadata_;
  }
  [[nodiscard]] bool contains(std::string_view name) const { return by_name_.contains(name); }
  /// Throws Error(config) if the file has no such tensor.
  [[nodiscard]] const TensorEntry& at(std::string_view name) const;
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

  /// Reads elements [offset, offset + out.size()) of a tensor with dtype F32, F16, BF16 or F64, as
  /// fp32. Touches only the pages that hold them.
  void read_slice(std::string_view name, std::int64_t offset, std::span<float> out) const;

 private:
  std::filesystem::path path_;
  MappedFile file_;
  std::uint64_t data_begin_ = 0;
  std::vector<TensorEntry> tensors_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
  std::map<std::string, std::string> metadata_;
};

/// Writes a file as a stream: first the header, then the tensors in the order of the list. The file
/// is complete or absent (AtomicFile).
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::filesystem::path& path, std::vector<NamedTensor> tensors,
                    const std::map<std::string, std::string>& metadata = {});

  /// Appends the next elements of the current tensor, converted to its dtype. Throws Error(config)
  /// if that dtype is not real, and Error(internal) if the elements do not fit into the tensor.
  void append(std::span<const float> values);
  /// Appends bytes in the tensor's own dtype.
  void append(std::span<const std::byte> bytes);
  /// Completes the file. Throws Error(internal) if elements are missing.
  void commit();

 private:
  [[nodiscard]] std::uint64_t current_nbytes() const noexcept;
  void skip_complete() noexcept;
  void check_room(std::uint64_t nbytes) const;

  AtomicFile file_;
  std::vector<NamedTensor> tensors_;
  std::size_t current_ = 0;
  std::uint64_t written_ = 0;  ///< bytes written of the current tensor
};

}  // namespace acc::checkpoint
