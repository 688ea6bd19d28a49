#pragma once

#include "acc/base/error.hpp"
#include "acc/base/output_file.hpp"

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace acc {

/// Error(config) for a call that failed on a path, with the reason that errno gives:
/// "cannot <action> <path>: <reason>".
Error file_error(std::string_view action, const std::filesystem::path& path, int error_number);

/// A file that is complete or absent: written as "<path>.tmp", which replaces what a killed writer
/// left there, and given its name by `commit`. Without `commit` the temporary is removed.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);

  void write(std::span<const std::byte> bytes) { file_.write(bytes); }
  void write(std::string_view text) { file_.write(text); }
  /// Flushes to the disk, renames, flushes the folder.
  void commit();
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
  OutputFile file_;
};

enum class Overwrite { no, yes };

/// Throws Error(config) where `path` exists and may not be overwritten.
void check_free(const std::filesystem::path& path, Overwrite overwrite);

/// Writes a text as an AtomicFile. Throws Error(config) where `path` exists and may not be
/// overwritten, and where it cannot be written.
void write_file(const std::filesystem::path& path, std::string_view text, Overwrite overwrite);

/// Makes a folder's entries (names, renames) survive a crash of the machine.
void sync_folder(const std::filesystem::path& folder);

/// The folder that `path` lies in; "." for a bare name.
std::filesystem::path folder_of(const std::filesystem::path& path);

}  // namespace acc
