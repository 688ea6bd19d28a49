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

namespace acc {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kWaitForWriter = std::chrono::seconds(5);

std::string cannot_read(const fs::path& path, const std::string& reason) {
  return "cannot read " + path.string() + ": " + reason;
}

/// Opens without waiting for the writer of a FIFO.
UniqueFd open_file(const fs::path& path) {
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) {
    throw Error(Errc::not_found, cannot_read(path, std::strerror(errno)));
  }
  if (S_ISDIR(status.st_mode)) {
    throw Error(Errc::config, cannot_read(path, "it is a folder, not a file"));
  }
  return file;
}

/// Whether something happened before the time was up; a negative time is without end.
bool wait_for(int file, std::chrono::milliseconds time) {
  pollfd event{.fd = file, .events = POLLIN, .revents = 0};
  int ready = -1;
  do {
    ready = ::poll(&event, 1, static_cast<int>(time.count()));
  } while (ready < 0 && errno == EINTR);
  return ready > 0;
}

}  // namespace

std::string read_input_file(const fs::path& path) {
  const UniqueFd file = open_file(path);
  // A FIFO without a writer reads as if it had ended; with one that has not written yet, as busy.
  bool may_lack_writer = fs::is_fifo(path);
  bool waited = false;
  std::string text;
  std::array<char, 65536> part{};
  while (true) {
    const ssize_t count = ::read(file.get(), part.data(), part.size());
    if (count > 0) {
      may_lack_writer = false;
      text.append(part.data(), static_cast<std::size_t>(count));
      if (text.size() > kLargestInputFile) {
        throw Error(Errc::config, cannot_read(path, "it is larger than " +
                                                        std::to_string(kLargestInputFile >> 20) +
                                                        " MiB, the limit"));
      }
    } else if (count == 0 && may_lack_writer) {
      if (waited) {
        throw Error(Errc::config, cannot_read(path,
                                              "it is a FIFO, and nobody has opened it for "
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

}  // namespace acc
