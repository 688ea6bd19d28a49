// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"
#include "acc/checkpoint/files/atomic_folder.hpp"
#include "acc/checkpoint/files/input_path.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace acc::checkpoint::conversion {

/// Files in a folder, which all get their names together: each is written as its temporary name
/// (written_file.hpp) and renamed by `commit`, in the order of the list, so that a file that
/// completes the set (an index) comes last. Objects are written to a temporary folder of this
/// machine first, and sent by `commit`. One process at a time writes to a folder. Without `commit`
/// nothing is left. Throws Error(config) with the path and the reason of errno.
class OutputSet {
 public:
  /// Creates the folder if it does not exist. Its parent must exist.
  explicit OutputSet(std::filesystem::path folder);
  OutputSet(const OutputSet&) = delete;
  OutputSet& operator=(const OutputSet&) = delete;
  ~OutputSet();

  /// Adds a file that the caller writes and flushes under the returned temporary name.
  std::filesystem::path add(const std::string& name);
  /// Creates a file of `nbytes`, of which any thread may write any part, and returns its number.
  /// Not to be called while other threads write.
  std::size_t add(const std::string& name, std::uint64_t nbytes);
  void write(std::size_t file, std::uint64_t offset, std::span<const std::byte> bytes) const;
  void read(std::size_t file, std::uint64_t offset, std::span<std::byte> bytes) const;
  /// Path of a file until `commit`.
  [[nodiscard]] std::filesystem::path temporary(std::size_t file) const;
  /// Flushes and renames all files, if what they were made of is unchanged. Returns their final
  /// paths.
  std::vector<std::filesystem::path> commit(const InputPath& from);

 private:
  struct File {
    std::filesystem::path path;
    UniqueFd fd;  ///< none if the caller writes it
  };
  std::filesystem::path folder_, written_in_;
  UniqueFd lock_;  ///< of the folder: the temporary names are those of every process
  bool made_folder_ = false;
  std::vector<File> files_;
};

/// Copies a file or an object and flushes it.
void copy_flushed(const InputPath& from, const std::filesystem::path& to);

/// The folder of an output while it is filled. Without `commit` it is removed.
class NewFolder {
 public:
  /// `overwrite`: true if an existing folder may be replaced, provided that it holds only files for
  /// which `is_ours` is true. Throws Error(config) if the target exists and may not be replaced.
  NewFolder(const std::filesystem::path& target,
            const std::function<bool(const std::string& path)>& is_ours, bool overwrite,
            const std::vector<std::string>& folders = {});
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  ~NewFolder();

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return folder_.temporary(); }
  /// Gives the folder its name, if what it was made of is unchanged.
  std::filesystem::path commit(const InputPath& from);

 private:
  void check_free() const;

  AtomicFolder folder_;
  bool overwrite_ = false;
  bool committed_ = false;
};

}  // namespace acc::checkpoint::conversion
