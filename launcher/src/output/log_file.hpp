#pragma once

#include "acc/base/unique_fd.hpp"

#include <string>
#include <string_view>
#include <utility>

namespace acc::launcher {

/// For appending, made where it is missing. Throws Error(config) where that cannot be.
UniqueFd open_log(const std::string& path);

/// A file that gets a copy of what workers write, until it cannot be written any more.
class LogFile {
 public:
  explicit LogFile(std::string path) : path_(std::move(path)), file_(open_log(path_)) {}

  [[nodiscard]] const std::string& path() const noexcept { return path_; }

  /// Returns 0, or once the error number with which the file has ended.
  int write(std::string_view bytes);

 private:
  std::string path_;
  UniqueFd file_;
};

}  // namespace acc::launcher
