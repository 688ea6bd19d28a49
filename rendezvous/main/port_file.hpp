// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/atomic_file.hpp"

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string_view>

namespace acc::rendezvous {

/// Owns the file with the addresses of the daemon. It exists only while the daemon serves.
class PortFile {
 public:
  /// An empty path means no file. Removes a file that a dead daemon left behind; the new one gets
  /// its owner and permissions. Throws Error(config) for anything but a regular file.
  explicit PortFile(std::filesystem::path path);
  PortFile(const PortFile&) = delete;
  PortFile& operator=(const PortFile&) = delete;
  ~PortFile() { remove(); }

  /// Writes the file atomically: a reader never sees a part of it. Throws Error(config).
  void write(std::string_view text);
  /// Removes the file unless another one has taken its place.
  void remove();

 private:
  std::filesystem::path path_;
  std::optional<AtomicFile> next_;  // until `write`
  ino_t written_ = 0;
};

}  // namespace acc::rendezvous
