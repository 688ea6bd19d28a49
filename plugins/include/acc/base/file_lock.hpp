// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"

#include <chrono>
#include <filesystem>
#include <string>

namespace acc {

/// Tries to lock an open file for this process alone (flock(2)); the kernel releases the lock when
/// the descriptor is closed. False if another process holds it. Throws Error(config) if the file
/// system cannot lock it. `path`: its name for the message. Who can open the file can hold the lock
/// for ever, so it must be one that only this user can open.
bool try_lock(const UniqueFd& file, const std::filesystem::path& path);

/// Returns ": process 17 (python) holds its lock", as far as the kernel tells; else "".
std::string holder_of_lock(const UniqueFd& file);

/// Holds the lock of a file that belongs to this purpose. Creates it with the mode 0600.
class FileLock {
 public:
  /// Waits while other processes hold the lock, at most for `limit`; then throws Error(config) that
  /// names the holder. Throws Error(config) if other users can open the file, or if it cannot be
  /// locked.
  FileLock(const std::filesystem::path& path, std::chrono::milliseconds limit);

 private:
  UniqueFd file_;
};

}  // namespace acc
