// SPDX-License-Identifier: Apache-2.0
#include "output/log_file.hpp"

#include "acc/base/error.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace acc::launcher::output {

UniqueFd open_log(const std::string& path) {
  // With O_APPEND each write goes to the end, even if several processes share the file.
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!file) {
    throw Error(Errc::config, "cannot write " + path + ": " + std::strerror(errno));
  }
  return file;
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
