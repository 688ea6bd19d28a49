// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace acc::checkpoint {

/// A regular file opened for reading. Any thread may read. All errors are Error(config) with the
/// path.
class InputFile {
 public:
  explicit InputFile(std::filesystem::path path);

  /// Reads exactly [offset, offset + out.size()). Throws if the file is shorter ("truncated", with
  /// the expected and found number of bytes).
  void read(std::uint64_t offset, std::span<std::byte> out) const;
  /// Size of the file in bytes when it was opened.
  [[nodiscard]] std::uint64_t nbytes() const noexcept { return nbytes_; }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
  std::uint64_t nbytes_ = 0;
};

/// Returns the CRC-32 of bytes [offset, offset + nbytes) of a file. Reads one MiB at a time.
std::uint32_t crc32_of(const InputFile& file, std::uint64_t offset, std::uint64_t nbytes);

}  // namespace acc::checkpoint
