// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"

#include <string>
#include <string_view>
#include <utility>

namespace acc::launcher::output {

/// Opens a file for appending, and creates it if it does not exist. Throws Error(config).
UniqueFd open_log(const std::string& path);

/// A log file with a copy of the workers' output. After the first write error (disk full) the file
/// is closed and further output is ignored; the job goes on.
class LogFile {
 public:
  explicit LogFile(std::string path) : path_(std::move(path)), file_(open_log(path_)) {}

  [[nodiscard]] const std::string& path() const noexcept { return path_; }

  /// Appends `bytes`. Returns 0, or the errno value of the write error, once.
  int write(std::string_view bytes);

 private:
  std::string path_;
  UniqueFd file_;
};

}  // namespace acc::launcher::output
