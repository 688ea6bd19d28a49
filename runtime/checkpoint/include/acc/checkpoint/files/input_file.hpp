// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/files/input_path.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>

namespace acc::checkpoint {

/// A regular file, or an object, opened for reading. Any thread may read. All errors are
/// Error(config) with the path.
class InputFile {
 public:
  /// Opens a file of a checkpoint.
  explicit InputFile(const InputPath& path) : InputFile(path, path.open()) {}
  /// Opens any other file, for example one that was just written.
  explicit InputFile(const std::filesystem::path& path)
      : InputFile(path, InputPath::open_alone(path)) {}

  /// Reads exactly [offset, offset + out.size()). Throws if the file is shorter ("truncated", with
  /// the expected and found number of bytes).
  void read(std::uint64_t offset, std::span<std::byte> out) const;
  /// Returns the first `most` bytes, or all if there are fewer.
  [[nodiscard]] std::string text(std::uint64_t most = UINT64_MAX) const;
  /// Size of the file in bytes when it was opened.
  [[nodiscard]] std::uint64_t nbytes() const noexcept { return opened_.nbytes; }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  InputFile(std::filesystem::path path, InputPath::Opened opened)
      : path_(std::move(path)), opened_(std::move(opened)) {}

  std::filesystem::path path_;
  InputPath::Opened opened_;
};

/// Returns the CRC-32 of bytes [offset, offset + nbytes) of a file. Reads one MiB at a time.
std::uint32_t crc32_of(const InputFile& file, std::uint64_t offset, std::uint64_t nbytes);

}  // namespace acc::checkpoint
