// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/files/input_path.hpp"

#include "acc/base/atomic_file.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <map>
#include <mutex>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

namespace acc::checkpoint {

namespace fs = std::filesystem;

namespace {

/// What tells a file from another one, and from itself after a write.
struct Identity {
  dev_t device = 0;
  ino_t number = 0;
  off_t nbytes = 0;
  std::int64_t seconds = 0, nanoseconds = 0;  ///< of the last write

  bool operator==(const Identity&) const = default;
};

Identity identity_of(const struct stat& status) {
  return {status.st_dev, status.st_ino, status.st_size, status.st_mtim.tv_sec,
          status.st_mtim.tv_nsec};
}

// Pause between two looks at a file that was just written.
constexpr auto kPause = std::chrono::milliseconds(1);

// The kernel's clock for times of files advances every few milliseconds. A file that was written in
// the current interval could be written again without a change of its time, so the end of the
// interval is waited for.
bool is_of_this_interval(const Identity& file) {
  struct timespec now {};
  ::clock_gettime(CLOCK_REALTIME_COARSE, &now);
  const auto since = std::chrono::seconds(now.tv_sec - file.seconds) +
                     std::chrono::nanoseconds(now.tv_nsec - file.nanoseconds);
  return since <= std::chrono::nanoseconds(0) && since > std::chrono::milliseconds(-20);
}

// Opens a regular file. `fd` is that of an attempt to do so.
InputPath::Opened opened_file(UniqueFd fd, const fs::path& path, struct stat& status) {
  if (!fd || ::fstat(fd.get(), &status) != 0) {
    throw file_error("open", path, errno);
  }
  if (!S_ISREG(status.st_mode)) {
    throw Error(Errc::config, "cannot read " + path.string() + ": not a regular file");
  }
  return {std::move(fd), static_cast<std::uint64_t>(status.st_size)};
}

// O_NONBLOCK: opening a named pipe would otherwise wait for its writer. It has no effect on regular
// files.
constexpr int kOpenFile = O_RDONLY | O_CLOEXEC | O_NONBLOCK;

std::vector<std::string> names_in(int folder, const fs::path& path) {
  UniqueFd fd(folder);
  DIR* const opened = fd ? ::fdopendir(fd.get()) : nullptr;
  if (opened == nullptr) {
    throw file_error("read the folder", path, errno);
  }
  static_cast<void>(fd.release());  // closedir closes it
  const std::unique_ptr<DIR, int (*)(DIR*)> closes(opened, ::closedir);
  std::vector<std::string> names;
  for (errno = 0; const dirent* const entry = ::readdir(opened); errno = 0) {
    const std::string_view name(entry->d_name);
    if (name != "." && name != "..") {
      names.emplace_back(name);
    }
  }
  if (errno != 0) {
    throw file_error("read the folder", path, errno);
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace

/// The opened folder, and what was seen in it. Paths are those of the messages; system calls get
/// them relative to the folder.
class InputPath::Folder {
 public:
  explicit Folder(const fs::path& path) : path_(path) {
    open();
    if (!fd_ && (errno == ENOTDIR || errno == ENOENT)) {
      path_ = path.parent_path();
      open();
    }
    if (!fd_) {
      reason_ = errno;
    }
  }

  /// Returns false if nothing has this name.
  bool status(const fs::path& path, struct stat& status) {
    if (find(path, status) != 0) {
      if (errno != ENOENT && errno != ENOTDIR) {
        throw file_error("access", path, errno);
      }
      const std::lock_guard lock(mutex_);
      absent_.insert(path.native());
      return false;
    }
    return true;
  }

  std::vector<std::string> names(const fs::path& path) const {
    return names_in(open_at(path, O_RDONLY | O_CLOEXEC | O_DIRECTORY), path);
  }

  using IsPart = std::function<bool(const std::string& name)>;
  std::vector<std::string> names_of(const fs::path& path, const IsPart& is_part) {
    std::vector<std::string> names = select(path, is_part);
    struct stat status {};
    for (const std::string& name : names) {
      const fs::path file = path / name;
      while (find(file, status) == 0 && S_ISREG(status.st_mode)) {
        if (!is_of_this_interval(identity_of(status))) {
          static_cast<void>(note(file, status));
          break;
        }
        std::this_thread::sleep_for(kPause);
      }
    }
    const std::lock_guard lock(mutex_);
    listed_.emplace(path.native(), Listed{is_part, names});
    return names;
  }

  Opened open(const fs::path& path) {
    struct stat status {};
    Opened file = opened_file(UniqueFd(open_at(path, kOpenFile)), path, status);
    while (is_of_this_interval(identity_of(status))) {
      std::this_thread::sleep_for(kPause);
      file = opened_file(std::move(file.fd), path, status);
    }
    if (!note(path, status)) {
      throw changed(path, "was written or replaced");
    }
    return file;
  }

  void check_unchanged() {
    if (!fd_) {
      return;
    }
    struct stat own {};
    struct stat named {};
    if (::fstat(fd_.get(), &own) != 0) {
      throw file_error("access", path_, errno);
    }
    if (::stat(name_of_folder().c_str(), &named) != 0 || own.st_dev != named.st_dev ||
        own.st_ino != named.st_ino) {
      throw changed(path_, "was replaced or removed");
    }
    const std::lock_guard lock(mutex_);
    struct stat status {};
    for (const auto& [path, first] : files_) {
      // A network file system answers from the server, not from what it remembers.
      struct statx ignored {};
      static_cast<void>(::statx(fd_.get(), relative(path).c_str(), AT_STATX_FORCE_SYNC,
                                STATX_BASIC_STATS, &ignored));
      if (find(path, status) != 0 || identity_of(status) != first) {
        throw changed(path, "was written, replaced or removed");
      }
    }
    for (const std::string& path : absent_) {
      if (find(path, status) == 0) {
        throw changed(path, "has appeared");
      }
    }
    for (const auto& [path, listed] : listed_) {
      if (select(path, listed.is_part) != listed.names) {
        throw changed(path, "has other files");
      }
    }
  }

 private:
  struct Listed {
    IsPart is_part;
    std::vector<std::string> names;
  };

  // Remembers a file when it is first seen. Returns false if it is no longer what it was then.
  bool note(const fs::path& path, const struct stat& status) {
    const Identity identity = identity_of(status);
    const std::lock_guard lock(mutex_);
    return files_.emplace(path.native(), identity).first->second == identity;
  }
  void open() { fd_.reset(::open(name_of_folder().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)); }
  [[nodiscard]] fs::path name_of_folder() const { return path_.empty() ? "." : path_; }

  [[nodiscard]] std::string relative(const fs::path& path) const {
    const std::string& folder = path_.native();
    if (!path.native().starts_with(folder)) {
      throw Error(Errc::internal, path.string() + " is not in the opened folder " + folder);
    }
    const std::string_view name = std::string_view(path.native()).substr(folder.size());
    const std::size_t begin = folder.empty() ? 0 : name.find_first_not_of('/');
    return begin >= name.size() ? "." : std::string(name.substr(begin));
  }
  int find(const fs::path& path, struct stat& status) const {
    if (!fd_) {
      errno = reason_;
      return -1;
    }
    return ::fstatat(fd_.get(), relative(path).c_str(), &status, 0);
  }
  int open_at(const fs::path& path, int flags) const {
    if (!fd_) {
      errno = reason_;
      return -1;
    }
    return ::openat(fd_.get(), relative(path).c_str(), flags);
  }
  std::vector<std::string> select(const fs::path& path, const IsPart& is_part) const {
    std::vector<std::string> found = names(path);
    std::erase_if(found, [&](const std::string& name) { return !is_part(name); });
    return found;
  }
  static Error changed(const fs::path& path, const std::string& what) {
    return {Errc::config, path.string() + ": " + what +
                              " while the checkpoint was read: a program saves there, and what was "
                              "read may be of two checkpoints; read it again when the save is "
                              "over"};
  }

  fs::path path_;
  UniqueFd fd_;
  int reason_ = 0;    ///< errno of the folder that could not be opened
  std::mutex mutex_;  // guards the members below
  std::map<std::string, Identity> files_;
  std::set<std::string> absent_;
  std::map<std::string, Listed> listed_;
};

InputPath::InputPath(fs::path path, Opens)
    : path_(std::move(path)), folder_(std::make_shared<Folder>(path_)) {}

InputPath InputPath::at(fs::path path) const {
  return {std::move(path), folder_};
}

bool InputPath::exists() const {
  struct stat status {};
  return folder_->status(path_, status);
}

bool InputPath::is_file() const {
  struct stat status {};
  return folder_->status(path_, status) && S_ISREG(status.st_mode);
}

bool InputPath::is_folder() const {
  struct stat status {};
  return folder_->status(path_, status) && S_ISDIR(status.st_mode);
}

std::uint64_t InputPath::nbytes() const {
  struct stat status {};
  if (!folder_->status(path_, status)) {
    throw file_error("read", path_, ENOENT);
  }
  return static_cast<std::uint64_t>(status.st_size);
}

std::vector<std::string> InputPath::names() const {
  return folder_->names(path_);
}

std::vector<std::string> InputPath::names_of(
    const std::function<bool(const std::string& name)>& is_part) const {
  return folder_->names_of(path_, is_part);
}

InputPath::Opened InputPath::open() const {
  return folder_->open(path_);
}

InputPath::Opened InputPath::open_alone(const fs::path& path) {
  struct stat status {};
  return opened_file(UniqueFd(::open(path.c_str(), kOpenFile)), path, status);
}

void InputPath::check_unchanged() const {
  if (folder_) {
    folder_->check_unchanged();
  }
}

}  // namespace acc::checkpoint
