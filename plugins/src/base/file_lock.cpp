// SPDX-License-Identifier: Apache-2.0
#include "acc/base/file_lock.hpp"

#include "acc/base/atomic_file.hpp"
#include "acc/base/error.hpp"
#include "acc/base/text.hpp"
#include "acc/base/written_file.hpp"

#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <thread>

namespace acc {
namespace {

// The time between two tries grows to this.
constexpr std::chrono::milliseconds kLongestPause{20};

}  // namespace

bool try_lock(const UniqueFd& file, const std::filesystem::path& path) {
  int result = 0;
  do {
    result = ::flock(file.get(), LOCK_EX | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  if (result != 0 && errno != EWOULDBLOCK) {
    throw file_error("lock", path, errno);
  }
  return result == 0;
}

// Lines of /proc/locks (proc_locks(5)): "1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF", where
// the numbers after the pid are the device and the inode. A waiting process has "->" behind the
// first number.
std::string holder_of_lock(const UniqueFd& file) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) {
    return {};
  }
  const std::string which = fmt::format(" {:02x}:{:02x}:{} ", ::major(status.st_dev),
                                        ::minor(status.st_dev), status.st_ino);
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    const auto at = line.find(which);
    if (at == std::string::npos || line.find("->") != std::string::npos) {
      continue;
    }
    const auto pid =
        read_number(line.substr(line.rfind(' ', at - 1) + 1, at - line.rfind(' ', at - 1) - 1));
    if (pid && *pid > 0) {  // 0: it is in another PID namespace
      std::string name;
      std::getline(std::ifstream(fmt::format("/proc/{}/comm", *pid)), name);
      return fmt::format(": process {} ({}) holds its lock", *pid, printable(name));
    }
  }
  return {};
}

FileLock::FileLock(const std::filesystem::path& path, std::chrono::milliseconds limit)
    : file_(open_private_file(path)) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (std::chrono::milliseconds pause{1}; !try_lock(file_, path);
       pause = std::min(2 * pause, kLongestPause)) {
    if (std::chrono::steady_clock::now() >= deadline) {
      throw Error(Errc::config, fmt::format("cannot lock {} within {} ms{}", path.string(),
                                            limit.count(), holder_of_lock(file_)));
    }
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace acc
