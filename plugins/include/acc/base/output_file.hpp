#pragma once

#include "acc/base/unique_fd.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace acc {

/// A new file that is written from front to back, without a copy for what is large. Nobody may look
/// for it before it is closed: it lies under a temporary name (AtomicFile), or in a folder that has
/// one. Throws Error(config) that names the path and errno's reason.
class OutputFile {
 public:
  /// Replaces a file of that name.
  explicit OutputFile(std::filesystem::path path);
  OutputFile(OutputFile&&) noexcept = default;
  OutputFile& operator=(OutputFile&&) = delete;
  /// Without `close`, the file is removed.
  ~OutputFile();

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  /// Makes room for a file of so many bytes, so that a disk that is too small says so at once.
  /// Nothing where the file system cannot, or is a tmpfs.
  void reserve(std::uint64_t nbytes);
  /// From where the next byte goes.
  [[nodiscard]] std::uint64_t position() const noexcept { return written_ + buffer_.size(); }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  /// Flushes to the disk and closes.
  void close();

 private:
  void flush();
  void write_through(std::span<const std::byte> bytes);

  std::filesystem::path path_;
  UniqueFd fd_;
  std::string buffer_;  ///< small pieces on their way
  std::uint64_t written_ = 0;
};

}  // namespace acc
