// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/error.hpp"
#include "acc/base/output_file.hpp"

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace acc {

/// Returns an Error(config) for a system call that failed on a path, with the text of errno:
/// "cannot <action> <path>: <reason>".
Error file_error(std::string_view action, const std::filesystem::path& path, int error_number);

/// Writes a file so that a reader sees either all of it or nothing. The bytes go to the temporary
/// name of the path (written_file.hpp), which replaces a leftover of a killed writer; `commit`
/// renames it; an object appears as a whole by itself. An existing file is replaced only if it is a
/// regular one, and keeps its owner and permissions. The destructor removes the temporary file if
/// `commit` was not called. Not for two writers of one path at the same time.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);

  void write(std::span<const std::byte> bytes) { file_.write(bytes); }
  void write(std::string_view text) { file_.write(text); }
  /// Flushes the bytes to the disk, renames the file, then flushes the folder, so that the new name
  /// survives a crash of the machine too. Throws Error(config).
  void commit();
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
  OutputFile file_;
};

/// States if an existing file may be replaced (the flag --overwrite).
enum class Overwrite { no, yes };

/// Throws Error(config) if `path` exists and `overwrite` is `no`. A symbolic link counts as
/// existing even if its target is missing.
void check_free(const std::filesystem::path& path, Overwrite overwrite);

/// Writes a text as an AtomicFile. Throws Error(config) if `path` exists and may not be
/// overwritten, or cannot be written.
void write_file(const std::filesystem::path& path, std::string_view text, Overwrite overwrite);

/// Flushes a folder's entries (new names, renames) to the disk, so that they survive a crash of the
/// machine. Throws Error(config).
void sync_folder(const std::filesystem::path& folder);

/// Returns the folder that contains `path`; "." for a bare name.
std::filesystem::path folder_of(const std::filesystem::path& path);

}  // namespace acc
