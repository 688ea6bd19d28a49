#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

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

}  // namespace acc::checkpoint
