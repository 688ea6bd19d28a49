// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string_view>

namespace acc::rendezvous {

/// Owns the file with the addresses of the daemon. It exists only while the daemon serves.
class PortFile {
 public:
  /// An empty path means no file. Removes a file that a dead daemon left behind.
  explicit PortFile(std::filesystem::path path);
  PortFile(const PortFile&) = delete;
  PortFile& operator=(const PortFile&) = delete;
  ~PortFile() { remove(); }

  /// Writes the file atomically: a reader never sees a part of it. Throws Error(config).
  void write(std::string_view text);
  void remove();

 private:
  std::filesystem::path path_;
};

}  // namespace acc::rendezvous
