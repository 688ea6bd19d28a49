// SPDX-License-Identifier: Apache-2.0
#include "report/record_files.hpp"

#include "acc/base/atomic_file.hpp"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

namespace acc::launcher::report {
namespace {

constexpr int kFolder = O_PATH | O_DIRECTORY | O_CLOEXEC;

/// Opens a folder by the path that a process has for it. Where the kernel cannot do that (before
/// Linux 5.6), opens it by the same path in this process, if that means the same folder.
UniqueFd folder_of_process(const supervision::ProcessHandle& process, const UniqueFd& root,
                           const char* path) {
  open_how how{};
  how.flags = kFolder;
  how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS;
  UniqueFd folder(
      root ? static_cast<int>(::syscall(SYS_openat2, root.get(), path, &how, sizeof how)) : -1);
  if (!folder && process.sees_own_files()) {
    folder.reset(::open(path, kFolder));
  }
  return folder;
}

}  // namespace

RecordFiles::RecordFiles(const std::string& record)
    : name_(std::filesystem::path(record).filename().string()) {
  if (!name_.empty()) {
    folder_ = std::make_shared<UniqueFd>(::open(acc::folder_of(record).c_str(), kFolder));
  }
}

RecordFiles::RecordFiles(const supervision::ProcessHandle& process, const spawn::User& user,
                         const std::string& record)
    : name_(std::filesystem::path(record).filename().string()) {
  const UniqueFd root = process.root();
  const spawn::ActingAs acting(user);
  if (!acting || name_.empty()) {
    return;
  }
  if (!user.is_own()) {
    user_ = user;
  }
  folder_ =
      std::make_shared<UniqueFd>(folder_of_process(process, root, acc::folder_of(record).c_str()));
}

/// Opens a file of this type (S_IFREG, S_IFIFO).
UniqueFd RecordFiles::open(const std::string& suffix, int flags, mode_t type) const {
  if (!folder_ || !*folder_) {
    return {};
  }
  const spawn::ActingAs acting(user_.value_or(spawn::User{::geteuid(), ::getegid()}));
  // O_NONBLOCK: opening a FIFO, which a worker may have put in the place of a file, would block.
  UniqueFd file(acting ? ::openat(folder_->get(), (name_ + suffix).c_str(),
                                  flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)
                       : -1);
  struct stat status {};
  const bool is_right = file && ::fstat(file.get(), &status) == 0 &&
                        (status.st_mode & S_IFMT) == type &&
                        (!user_ || status.st_uid == user_->uid);
  return is_right ? std::move(file) : UniqueFd();
}

std::string RecordFiles::read(const std::string& suffix, std::size_t limit) const {
  const UniqueFd file = open(suffix, O_RDONLY, S_IFREG);
  std::string text;
  std::string part(std::size_t{64} << 10, '\0');
  while (file && text.size() <= limit) {
    const ssize_t count = ::read(file.get(), part.data(), part.size());
    if (count == 0) {
      return text.size() <= limit ? text : "";
    }
    if (count < 0 && errno != EINTR) {
      break;
    }
    text.append(part, 0, count > 0 ? static_cast<std::size_t>(count) : 0);
  }
  return {};
}

bool RecordFiles::has(const std::string& suffix) const {
  return static_cast<bool>(open(suffix, O_RDONLY, S_IFREG));
}

void RecordFiles::remove(const std::string& suffix) const {
  const spawn::ActingAs acting(user_.value_or(spawn::User{::geteuid(), ::getegid()}));
  if (acting && folder_ && *folder_) {
    ::unlinkat(folder_->get(), (name_ + suffix).c_str(), 0);
  }
}

bool RecordFiles::send(const std::string& suffix, char byte) const {
  // Without a reader, a non-blocking open of a FIFO for writing fails.
  const UniqueFd fifo = open(suffix, O_WRONLY, S_IFIFO);
  return fifo && ::write(fifo.get(), &byte, 1) == 1;
}

}  // namespace acc::launcher::report
