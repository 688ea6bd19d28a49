// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/object_store.hpp"
#include "acc/base/unique_fd.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace acc {

/// Writes a new file, or an object (`is_object`), sequentially. Small writes are buffered; large
/// writes go to the kernel without a copy. The path of a file must be a temporary name, or lie in a
/// folder with a temporary name, because other processes could read the incomplete file (AtomicFile
/// does this for single files). Members throw Error(config) with the path and the text of errno.
class OutputFile {
 public:
  /// Creates the file, in the place of a regular file of this name (`create_file`). An object
  /// appears when it is closed.
  explicit OutputFile(std::filesystem::path path);
  /// Writes to a new file that is open.
  OutputFile(std::filesystem::path path, UniqueFd file);
  OutputFile(OutputFile&&) noexcept = default;
  OutputFile& operator=(OutputFile&&) = delete;
  /// Removes the file if `close` was not called.
  ~OutputFile();

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  /// Allocates disk space for a file of `nbytes` bytes, so that a full disk is reported before the
  /// data is written. Does nothing on tmpfs and on file systems without fallocate.
  void reserve(std::uint64_t nbytes);
  /// Returns the offset in the file of the next byte written.
  [[nodiscard]] std::uint64_t position() const noexcept { return written_ + buffer_.size(); }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  /// Flushes the data to the disk (fsync) and closes the file.
  void close();

 private:
  void flush();
  void write_through(std::span<const std::byte> bytes);

  std::filesystem::path path_;
  UniqueFd fd_;  ///< none: an object
  std::unique_ptr<ObjectWriter> object_;
  std::string buffer_;         ///< small writes that have not reached the kernel yet
  std::uint64_t written_ = 0;  ///< bytes that the kernel has accepted
};

}  // namespace acc
