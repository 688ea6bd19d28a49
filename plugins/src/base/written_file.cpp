// SPDX-License-Identifier: Apache-2.0
#include "acc/base/written_file.hpp"

#include "acc/base/atomic_file.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace acc {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAccessList = "system.posix_acl_access";
constexpr mode_t kPermissions = S_IRWXU | S_IRWXG | S_IRWXO;

Error cannot_write(const fs::path& path, const std::string& reason) {
  return {Errc::config, fmt::format("cannot write {}: {}", path.string(), reason)};
}

/// Returns what is at a path, which is not followed if it is a link; nullopt if there is nothing.
std::optional<struct stat> status_of(const fs::path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0) {
    return status;
  }
  if (errno == ENOENT) {
    return std::nullopt;
  }
  throw file_error("access", path, errno);
}

/// Throws if `status` is not that of a regular file. `accepted`: a further type.
void check_type(const fs::path& path, const struct stat& status, mode_t accepted = S_IFREG) {
  const mode_t type = status.st_mode & S_IFMT;
  if (type == S_IFREG || type == accepted) {
    return;
  }
  std::error_code ignored;
  throw cannot_write(path, type == S_IFLNK
                               ? "it is a symbolic link to " +
                                     fs::read_symlink(path, ignored).string() + "; give a file"
                           : type == S_IFIFO  ? "it is a FIFO, not a file"
                           : type == S_IFDIR  ? "it is a folder, not a file"
                           : type == S_IFSOCK ? "it is a socket, not a file"
                                              : "it is a device, not a file");
}

void check_links(const fs::path& path, const struct stat& status) {
  if (S_ISREG(status.st_mode) && status.st_nlink > 1) {
    throw cannot_write(path, fmt::format("the file has {} names (hard links); remove this one, or "
                                         "choose another name",
                                         status.st_nlink));
  }
}

/// Opens or creates a file. Neither follows a link nor waits for the reader of a FIFO.
UniqueFd open_safely(std::string_view action, const fs::path& path, int flags, mode_t mode) {
  UniqueFd file(::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, mode));
  if (!file) {
    const int reason = errno;
    if (const auto status = status_of(path)) {
      check_type(path, *status);
    }
    errno = reason;
    throw file_error(action, path, errno);
  }
  return file;
}

/// Gives an open file the owner and the permissions of another one, which it will replace.
void take_permissions(const UniqueFd& file, const fs::path& from, const struct stat& status) {
  struct stat own {};
  if (::fstat(file.get(), &own) != 0) {
    throw file_error("access", from, errno);
  }
  const bool has_owner = own.st_uid == status.st_uid && own.st_gid == status.st_gid;
  if (!has_owner && ::fchown(file.get(), status.st_uid, status.st_gid) != 0) {
    throw cannot_write(from, fmt::format("it belongs to user {} and group {}, and its "
                                         "replacement "
                                         "would not; remove it, or choose another name",
                                         status.st_uid, status.st_gid));
  }
  std::string list(std::size_t{64} << 10, '\0');  // the largest value of Linux (xattr(7))
  const ssize_t size = ::lgetxattr(from.c_str(), kAccessList, list.data(), list.size());
  const bool has_list = size > 0;
  if (::fchmod(file.get(), status.st_mode & kPermissions) != 0 ||
      (has_list &&
       ::fsetxattr(file.get(), kAccessList, list.data(), static_cast<std::size_t>(size), 0) != 0)) {
    throw file_error("keep the permissions of", from, errno);
  }
}

/// Opens a file to change it where it is.
UniqueFd open_in_place(const fs::path& path, int flags, mode_t mode) {
  // Truncated below, when it is known what it is.
  UniqueFd file = open_safely("write", path, (flags & ~O_TRUNC) | O_CREAT, mode);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) {
    throw file_error("access", path, errno);
  }
  check_type(path, status, S_IFCHR);
  check_links(path, status);
  if ((flags & O_TRUNC) != 0 && S_ISREG(status.st_mode) && ::ftruncate(file.get(), 0) != 0) {
    throw file_error("truncate", path, errno);
  }
  ::fcntl(file.get(), F_SETFL, flags & O_APPEND);  // without O_NONBLOCK
  return file;
}

}  // namespace

fs::path temporary_name(const fs::path& path) {
  return path.string() + ".acc-tmp";
}

UniqueFd create_file(const fs::path& path, int flags, mode_t mode) {
  if (const auto leftover = status_of(path)) {
    check_type(path, *leftover);
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
      throw file_error("remove", path, errno);
    }
  }
  return open_safely("create", path, flags | O_CREAT | O_EXCL, mode);
}

UniqueFd open_file(const fs::path& path, int flags) {
  return open_in_place(path, flags, 0666);
}

UniqueFd open_private_file(const fs::path& path) {
  UniqueFd file = open_in_place(path, O_RDWR, S_IRUSR | S_IWUSR);
  struct stat status {};
  struct stat folder {};
  if (::fstat(file.get(), &status) != 0 || ::stat(folder_of(path).c_str(), &folder) != 0) {
    throw file_error("access", path, errno);
  }
  // A file server may give all files to one user: then the folder belongs to that user too.
  if (status.st_uid != ::geteuid() && status.st_uid != folder.st_uid) {
    throw cannot_write(path, fmt::format("it belongs to user {}; remove it", status.st_uid));
  }
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    ::fchmod(file.get(), S_IRUSR | S_IWUSR);  // fails on a file system without permissions
  }
  return file;
}

void check_replaceable(const fs::path& path) {
  if (const auto status = status_of(path)) {
    check_type(path, *status);
    check_links(path, *status);
  }
}

UniqueFd create_replacement(const fs::path& path, const fs::path& temporary, int flags,
                            mode_t mode) {
  check_replaceable(path);
  const auto status = status_of(path);
  UniqueFd file = create_file(temporary, flags, status ? S_IRUSR | S_IWUSR : mode);
  if (status) {
    try {
      take_permissions(file, path, *status);
    } catch (const Error&) {
      ::unlink(temporary.c_str());
      throw;
    }
  }
  return file;
}

void keep_permissions(const fs::path& replacement, const fs::path& path) {
  const auto status = status_of(path);
  if (!status) {
    return;
  }
  constexpr int kFlags = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  UniqueFd file(::open(replacement.c_str(), O_RDONLY | kFlags));
  if (!file && errno == EACCES) {  // it can only be written
    file.reset(::open(replacement.c_str(), O_WRONLY | kFlags));
  }
  if (!file) {
    throw file_error("open", replacement, errno);
  }
  take_permissions(file, path, *status);
}

void replace_file(const fs::path& temporary, const fs::path& path) {
  check_replaceable(path);
  keep_permissions(temporary, path);
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    throw file_error("create", path, errno);
  }
  sync_folder(folder_of(path));
}

}  // namespace acc
