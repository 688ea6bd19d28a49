// SPDX-License-Identifier: Apache-2.0
#include "supervision/process_handle.hpp"

#include "acc/base/error.hpp"
#include "acc/base/text.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace acc::launcher::supervision {
namespace {

constexpr std::size_t kLargestFile = std::size_t{16} << 20;

/// Returns the numbers after "Uid:" and the like in a status file (proc_pid_status(5)).
std::vector<unsigned> numbers_of(const std::string& status, std::string_view key) {
  std::vector<unsigned> numbers;
  for (const std::string_view line : split(status, '\n')) {
    if (line.starts_with(key)) {
      std::istringstream words{std::string(line.substr(key.size()))};
      for (unsigned number = 0; words >> number;) {
        numbers.push_back(number);
      }
    }
  }
  return numbers;
}

/// True if the real, effective, saved and file system identities are one.
bool is_one(const std::vector<unsigned>& identities) {
  return identities.size() == 4 &&
         std::ranges::count(identities, identities.front()) == std::ssize(identities);
}

bool is_same_file(int folder_a, const char* a, int folder_b, const char* b) {
  struct stat one {};
  struct stat other {};
  return ::fstatat(folder_a, a, &one, 0) == 0 && ::fstatat(folder_b, b, &other, 0) == 0 &&
         one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

}  // namespace

ProcessHandle::ProcessHandle(pid_t pid)
    : folder_(::open(fmt::format("/proc/{}", pid).c_str(),
                     O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW)) {}

bool ProcessHandle::is_alive() const {
  return !read("stat").empty();
}

std::string ProcessHandle::read(const char* file) const {
  const UniqueFd opened(::openat(folder_.get(), file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  std::string text;
  std::array<char, 65536> part{};
  while (opened && text.size() < kLargestFile) {
    const ssize_t count = ::read(opened.get(), part.data(), part.size());
    if (count <= 0 && !(count < 0 && errno == EINTR)) {
      break;
    }
    text.append(part.data(), count > 0 ? static_cast<std::size_t>(count) : 0);
  }
  return text;
}

UniqueFd ProcessHandle::root() const {
  return UniqueFd(::openat(folder_.get(), "root", O_PATH | O_DIRECTORY | O_CLOEXEC));
}

bool ProcessHandle::sees_own_files() const {
  return is_same_file(folder_.get(), "ns/mnt", AT_FDCWD, "/proc/self/ns/mnt") &&
         is_same_file(folder_.get(), "root", AT_FDCWD, "/");
}

std::optional<spawn::User> ProcessHandle::user() const {
  const std::string status = read("status");
  const std::vector<unsigned> users = numbers_of(status, "Uid:");
  const std::vector<unsigned> groups = numbers_of(status, "Gid:");
  struct stat program {};
  const bool is_readable = ::fstatat(folder_.get(), "exe", &program, 0) == 0;
  if (!is_one(users) || !is_one(groups) || !is_readable ||
      (program.st_mode & (S_ISUID | S_ISGID)) != 0) {
    return std::nullopt;
  }
  const std::vector<unsigned> more = numbers_of(status, "Groups:");
  return spawn::User{users.front(), groups.front(), {more.begin(), more.end()}};
}

UniqueFd watch_end_of(pid_t child) {
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  if (pidfd) {
    return pidfd;
  }
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw Error(Errc::process, std::string("cannot create a pipe: ") + std::strerror(errno));
  }
  UniqueFd readable(ends[0]);
  // WNOWAIT leaves the exit status for the owner of the worker.
  std::thread([child, closes_at_end = UniqueFd(ends[1])] {
    siginfo_t info{};
    while (::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) != 0 &&
           errno == EINTR) {
    }
  }).detach();
  return readable;
}

}  // namespace acc::launcher::supervision
