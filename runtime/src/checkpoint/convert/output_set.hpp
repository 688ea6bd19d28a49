#pragma once

#include "acc/base/unique_fd.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace acc::checkpoint::conversion {

/// Files of known sizes in a folder, filled at any place by any thread, that get their names
/// together: each is written as "<name>.tmp" and renamed by `commit`, in the order of the list, so
/// that what makes them a set (an index) is the last. Without `commit` nothing stays. Throws
/// Error(config) that names the path and errno's reason.
class OutputSet {
 public:
  /// Makes the folder, if it is not there; not the one that it lies in.
  explicit OutputSet(std::filesystem::path folder);
  OutputSet(const OutputSet&) = delete;
  OutputSet& operator=(const OutputSet&) = delete;
  ~OutputSet();

  /// Makes room on the disk. Gives its number. Not while others write.
  std::size_t add(const std::string& name, std::uint64_t nbytes);
  void write(std::size_t file, std::uint64_t offset, std::span<const std::byte> bytes) const;
  void read(std::size_t file, std::uint64_t offset, std::span<std::byte> bytes) const;
  /// Where a file lies until `commit`.
  [[nodiscard]] std::filesystem::path temporary(std::size_t file) const;
  /// Flushes and renames. Gives the files' final paths.
  std::vector<std::filesystem::path> commit();

 private:
  struct File {
    std::filesystem::path path;
    UniqueFd fd;
  };
  std::filesystem::path folder_;
  bool made_folder_ = false;
  std::vector<File> files_;
};

}  // namespace acc::checkpoint::conversion
