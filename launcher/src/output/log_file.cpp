// SPDX-License-Identifier: Apache-2.0
#include "output/log_file.hpp"

#include "acc/base/written_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace acc::launcher::output {

UniqueFd open_log(const std::string& path) {
  // With O_APPEND each write goes to the end, even if several processes share the file.
  return open_file(path, O_WRONLY | O_APPEND);
}

int LogFile::write(std::string_view bytes) {
  while (file_ && !bytes.empty()) {
    const ssize_t count = ::write(file_.get(), bytes.data(), bytes.size());
    if (count >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno != EINTR) {
      const int error = errno;
      file_.reset();
      return error;
    }
  }
  return 0;
}

}  // namespace acc::launcher::output
