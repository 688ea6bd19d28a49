// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/error.hpp"
#include "acc/base/unique_fd.hpp"

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace acc::checkpoint {

class ObjectReader;

/// A path of a checkpoint that is read, of files or of objects (`is_object`), in a folder that was
/// opened once. All that is read of a checkpoint has one such folder, so that a read that a save
/// overtakes fails instead of returning parts of two checkpoints: names are looked up relative to
/// the opened folder, and `check_unchanged` proves that everything that was looked at is still as
/// it was first seen. Copies, and paths made with `/`, share the opened folder. Thread-safe.
class InputPath {
 public:
  /// No path, until one is assigned.
  InputPath() = default;
  /// Opens a folder, or the folder of any other path. No error is reported here.
  template <typename Path>
  requires(!std::same_as<std::remove_cvref_t<Path>, InputPath> &&
           std::convertible_to<Path, std::filesystem::path>)
      InputPath(const Path& path)  // NOLINT(google-explicit-constructor): most readers need no more
      : InputPath(std::filesystem::path(path), Opens{}) {}

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  operator const std::filesystem::path&() const noexcept {  // NOLINT(google-explicit-constructor)
    return path_;
  }
  [[nodiscard]] std::string string() const { return path_.string(); }
  [[nodiscard]] std::filesystem::path filename() const { return path_.filename(); }
  /// Returns a path in the same opened folder.
  InputPath operator/(const std::filesystem::path& name) const { return at(path_ / name); }
  /// Returns another path below the opened folder. `path` begins as that folder's does.
  [[nodiscard]] InputPath at(std::filesystem::path path) const;

  /// The following throw Error(config) with the path if the file system refuses an answer.
  [[nodiscard]] bool exists() const;
  [[nodiscard]] bool is_file() const;
  [[nodiscard]] bool is_folder() const;
  /// Size of a file in bytes. Throws Error(config) if it does not exist.
  [[nodiscard]] std::uint64_t nbytes() const;
  /// Returns the names in a folder, sorted.
  [[nodiscard]] std::vector<std::string> names() const;
  /// Returns the names for which `is_part` is true. From here on these files must not change: a
  /// program that writes them one after the other, in place, is then seen also if each file is
  /// opened when it is complete.
  [[nodiscard]] std::vector<std::string> names_of(
      const std::function<bool(const std::string& name)>& is_part) const;

  /// A file that was opened, or an object.
  struct Opened {
    UniqueFd fd;
    std::uint64_t nbytes = 0;
    std::shared_ptr<ObjectReader> object = nullptr;
  };
  /// Opens a regular file for reading.
  [[nodiscard]] Opened open() const;

  /// The same for a file that is read without any other.
  [[nodiscard]] static Opened open_alone(const std::filesystem::path& path);

  /// Throws Error(config) that names what has changed if the opened folder has lost its name, or
  /// if a file that was listed or opened is another one or was written to, or if names that were
  /// looked for have appeared or gone. To be called after the last byte was read, and before
  /// anything is made of what was read.
  void check_unchanged() const;

 private:
  class Folder;
  class LocalFolder;
  class ObjectFolder;
  struct Opens {};
  InputPath(std::filesystem::path path, Opens);
  InputPath(std::filesystem::path path, std::shared_ptr<Folder> folder)
      : path_(std::move(path)), folder_(std::move(folder)) {}

  std::filesystem::path path_;
  std::shared_ptr<Folder> folder_;
};

/// Name of the object that is among those of a checkpoint while they are written (AtomicFolder).
inline constexpr const char* kUnfinishedMark = ".acc-unfinished";

/// Returns the paths of all files in a folder and its subfolders, relative to it, without the mark.
std::vector<std::string> files_below(const InputPath& folder);

/// Returns what `body` returns, which reads from `path`. A fault that it finds may come from a save
/// that has overtaken it: then throws what check_unchanged does instead.
template <typename Body>
decltype(auto) read_unchanged(const InputPath& path, const Body& body) {
  try {
    return body();
  } catch (const Error&) {
    path.check_unchanged();
    throw;
  }
}

}  // namespace acc::checkpoint
