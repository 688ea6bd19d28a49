#pragma once

#include "acc/base/unique_fd.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace acc::checkpoint {

/// A regular file opened for reading. Any thread may read. Throws Error(config) that names the
/// path.
class InputFile {
 public:
  explicit InputFile(std::filesystem::path path);

  /// Exactly [offset, offset + out.size()); throws where the file is shorter ("truncated": expected
  /// and found bytes).
  void read(std::uint64_t offset, std::span<std::byte> out) const;
  [[nodiscard]] std::uint64_t nbytes() const noexcept { return nbytes_; }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
  std::uint64_t nbytes_ = 0;
};

/// CRC-32 of [offset, offset + nbytes) of a file, read a megabyte at a time.
std::uint32_t crc32_of(const InputFile& file, std::uint64_t offset, std::uint64_t nbytes);

}  // namespace acc::checkpoint
