// SPDX-License-Identifier: Apache-2.0
#include "acc/base/input_file.hpp"

#include "acc/base/error.hpp"
#include "acc/base/unique_fd.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>

namespace acc {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kWaitForWriter = std::chrono::seconds(5);

std::string cannot_read(const fs::path& path, const std::string& reason) {
  return "cannot read " + path.string() + ": " + reason;
}

/// Opens a file. Does not wait for the writer of a FIFO, as a blocking open would.
UniqueFd open_file(const fs::path& path, bool may_be_device) {
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) {
    throw Error(Errc::not_found, cannot_read(path, std::strerror(errno)));
  }
  if (S_ISDIR(status.st_mode)) {
    throw Error(Errc::config, cannot_read(path, "it is a folder, not a file"));
  }
  if (!may_be_device && !S_ISREG(status.st_mode) && !S_ISFIFO(status.st_mode)) {
    throw Error(Errc::config, cannot_read(path, "it is neither a file nor a pipe"));
  }
  return file;
}

/// Waits until `file` can be read or was closed by its writers. True if that happened before the
/// timeout; a negative time means no timeout.
bool wait_for(int file, std::chrono::milliseconds time) {
  pollfd event{.fd = file, .events = POLLIN, .revents = 0};
  int ready = -1;
  do {
    ready = ::poll(&event, 1, static_cast<int>(time.count()));
  } while (ready < 0 && errno == EINTR);
  return ready > 0;
}

std::string read_all(const fs::path& path, const UniqueFd& file, std::size_t limit) {
  // With O_NONBLOCK, read(2) on a FIFO returns 0 while it has no writer, and fails with EAGAIN
  // while it has a writer that has not written yet. So a first 0 may mean that the writer has not
  // opened the FIFO yet, and the loop waits once, for at most kWaitForWriter. A 0 after data or
  // after EAGAIN is the end of the file.
  bool may_lack_writer = fs::is_fifo(path);
  bool waited = false;
  std::string text;
  std::array<char, 65536> part{};
  while (true) {
    const ssize_t count = ::read(file.get(), part.data(), part.size());
    if (count > 0) {
      may_lack_writer = false;
      text.append(part.data(), static_cast<std::size_t>(count));
      if (text.size() > limit) {
        throw Error(Errc::config,
                    cannot_read(path, "it is larger than " + std::to_string(limit >> 20) +
                                          " MiB, the limit"));
      }
    } else if (count == 0 && may_lack_writer) {
      if (waited) {
        throw Error(Errc::config, cannot_read(path,
                                              "it is a FIFO, and no process has opened it for "
                                              "writing"));
      }
      waited = !wait_for(file.get(), kWaitForWriter);
      may_lack_writer = waited;
    } else if (count == 0) {
      return text;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      may_lack_writer = false;
      wait_for(file.get(), std::chrono::milliseconds(-1));
    } else if (errno != EINTR) {
      throw Error(Errc::config, cannot_read(path, std::strerror(errno)));
    }
  }
}

}  // namespace

std::string read_input_file(const fs::path& path) {
  return read_all(path, open_file(path, true), kLargestInputFile);
}

std::string read_data_file(const fs::path& path) {
  return read_all(path, open_file(path, false), std::numeric_limits<std::size_t>::max());
}

}  // namespace acc
