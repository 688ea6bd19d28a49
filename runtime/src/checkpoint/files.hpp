#pragma once

#include "acc/base/error.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace acc::checkpoint {

/// Error(config) for a call that failed on a path, with the reason that errno gives:
/// "cannot <action> <path>: <reason>".
Error file_error(std::string_view action, const std::filesystem::path& path, int error_number);

/// A whole file mapped read-only.
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

/// A file that is complete or absent: written as "<path>.tmp", which replaces what a killed writer
/// left there, and given its name by `commit`. Without `commit` the temporary is removed.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  AtomicFile(AtomicFile&&) noexcept = default;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  /// Flushes to the disk, renames, flushes the folder.
  void commit();
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  struct Close {
    void operator()(std::FILE* file) const noexcept { std::fclose(file); }
  };
  std::filesystem::path path_, temporary_;
  std::unique_ptr<std::FILE, Close> file_;
};

/// Makes a folder's entries (names, renames) survive a crash of the machine.
void sync_folder(const std::filesystem::path& folder);

/// The folder that `path` lies in; "." for a bare name.
std::filesystem::path folder_of(const std::filesystem::path& path);

}  // namespace acc::checkpoint
