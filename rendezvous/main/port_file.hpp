#pragma once

#include <filesystem>
#include <string_view>

namespace acc::rendezvous {

/// A file that says where the daemon listens, there only while it does.
class PortFile {
 public:
  /// An empty path: no file. Removes what a dead daemon left there.
  explicit PortFile(std::filesystem::path path);
  PortFile(const PortFile&) = delete;
  PortFile& operator=(const PortFile&) = delete;
  ~PortFile() { remove(); }

  /// All at once: a reader sees no part of it. Throws Error(config).
  void write(std::string_view text);
  void remove();

 private:
  std::filesystem::path path_;
};

}  // namespace acc::rendezvous
