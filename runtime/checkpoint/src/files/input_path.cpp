// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/files/input_path.hpp"

#include "acc/base/atomic_file.hpp"
#include "acc/base/object_store.hpp"
#include "files/object_reader.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <map>
#include <mutex>
#include <optional>
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

/// The opened folder, and what was seen in it.
class InputPath::Folder {
 public:
  using IsPart = std::function<bool(const std::string& name)>;
  struct Status {
    bool is_file = false, is_folder = false;
    std::uint64_t nbytes = 0;
  };

  virtual ~Folder() = default;
  /// Returns nothing if nothing has this name.
  virtual std::optional<Status> status(const fs::path& path) = 0;
  [[nodiscard]] virtual std::vector<std::string> names(const fs::path& path) = 0;
  virtual std::vector<std::string> names_of(const fs::path& path, const IsPart& is_part) = 0;
  virtual Opened open(const fs::path& path) = 0;
  virtual void check_unchanged() = 0;

 protected:
  /// A list of names that must stay as it is.
  struct Listed {
    IsPart is_part;
    std::vector<std::string> names;
  };

  std::vector<std::string> select(const fs::path& path, const IsPart& is_part) {
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
};

/// A folder of files. Paths are those of the messages; system calls get them relative to the
/// folder.
class InputPath::LocalFolder final : public Folder {
 public:
  explicit LocalFolder(const fs::path& path) : path_(path) {
    open();
    if (!fd_ && (errno == ENOTDIR || errno == ENOENT)) {
      path_ = path.parent_path();
      open();
    }
    if (!fd_) {
      reason_ = errno;
    }
  }

  std::optional<Status> status(const fs::path& path) override {
    struct stat found {};
    if (find(path, found) != 0) {
      if (errno != ENOENT && errno != ENOTDIR) {
        throw file_error("access", path, errno);
      }
      const std::lock_guard lock(mutex_);
      absent_.insert(path.native());
      return std::nullopt;
    }
    return Status{S_ISREG(found.st_mode), S_ISDIR(found.st_mode),
                  static_cast<std::uint64_t>(found.st_size)};
  }

  std::vector<std::string> names(const fs::path& path) override {
    return names_in(open_at(path, O_RDONLY | O_CLOEXEC | O_DIRECTORY), path);
  }

  std::vector<std::string> names_of(const fs::path& path, const IsPart& is_part) override {
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

  Opened open(const fs::path& path) override {
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

  void check_unchanged() override {
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
  fs::path path_;
  UniqueFd fd_;
  int reason_ = 0;    ///< errno of the folder that could not be opened
  std::mutex mutex_;  // guards the members below
  std::map<std::string, Identity> files_;
  std::set<std::string> absent_;
  std::map<std::string, Listed> listed_;
};

/// A group of objects. What follows a slash is listed once, so that all questions about one group
/// are one request; the service refuses to read an object that is no longer the listed one.
class InputPath::ObjectFolder final : public Folder {
 public:
  explicit ObjectFolder(const fs::path& root) : root_(plain(root)) {}

  std::optional<Status> status(const fs::path& path) override {
    const fs::path name = plain(path);
    if (name == root_ && !listed(name).empty()) {
      return Status{.is_folder = true};
    }
    const auto object = find(name);
    const std::lock_guard lock(mutex_);
    if (object) {
      return Status{.is_file = true, .nbytes = object->nbytes};
    }
    if (name != root_ && groups_.at(name.parent_path()).contains(name.filename().string() + "/")) {
      return Status{.is_folder = true};
    }
    absent_.insert(name);
    return std::nullopt;
  }

  std::vector<std::string> names(const fs::path& path) override {
    return names_of_group(listed(plain(path)));
  }

  std::vector<std::string> names_of(const fs::path& path, const IsPart& is_part) override {
    std::vector<std::string> found = select(path, is_part);
    const std::lock_guard lock(mutex_);
    for (const std::string& name : found) {
      seen_.insert(plain(path) / name);
    }
    parts_.emplace(plain(path), Listed{is_part, found});
    return found;
  }

  Opened open(const fs::path& path) override {
    const fs::path name = plain(path);
    const auto object = find(name);
    if (!object) {
      throw file_error("open", path, ENOENT);
    }
    const std::lock_guard lock(mutex_);
    seen_.insert(name);
    return {UniqueFd(), object->nbytes, std::make_shared<ObjectReader>(name, *object)};
  }

  void check_unchanged() override {
    const std::lock_guard lock(mutex_);
    const auto known = std::exchange(groups_, {});
    const auto known_root = std::exchange(root_object_, {});
    knows_root_ = false;
    for (const fs::path& name : seen_) {
      const auto before = name == root_ ? known_root : object_in(known, name);
      if (find_unlocked(name) != before) {
        throw changed(name, "was written, replaced or removed");
      }
    }
    for (const fs::path& name : absent_) {
      if (find_unlocked(name)) {
        throw changed(name, "has appeared");
      }
    }
    for (const auto& [path, part] : parts_) {
      std::vector<std::string> found = names_of_group(list_unlocked(path));
      std::erase_if(found, [&part = part](const std::string& name) { return !part.is_part(name); });
      if (found != part.names) {
        throw changed(path, "has other files");
      }
    }
  }

 private:
  using Group = std::map<std::string, ObjectStore::Found>;
  using Groups = std::map<fs::path, Group>;

  /// Without a slash at the end.
  static fs::path plain(const fs::path& path) {
    return path.has_filename() || path == "s3://" ? path : path.parent_path();
  }
  /// Without the slashes that mark groups.
  static std::vector<std::string> names_of_group(const Group& group) {
    std::vector<std::string> names;
    for (const auto& [name, object] : group) {
      names.push_back(name.ends_with('/') ? name.substr(0, name.size() - 1) : name);
    }
    return names;
  }
  static std::optional<ObjectStore::Found> object_in(const Groups& groups, const fs::path& name) {
    const auto group = groups.find(name.parent_path());
    if (group == groups.end()) {
      return std::nullopt;
    }
    const auto found = group->second.find(name.filename().string());
    return found == group->second.end() ? std::nullopt : std::optional(found->second);
  }
  const Group& list_unlocked(const fs::path& path) {
    const auto found = groups_.find(path);
    return found != groups_.end() ? found->second
                                  : groups_.emplace(path, object_store().list(path)).first->second;
  }
  Group listed(const fs::path& path) {
    const std::lock_guard lock(mutex_);
    return list_unlocked(path);
  }
  /// The root may lie among many objects, which are not listed for it.
  std::optional<ObjectStore::Found> find_unlocked(const fs::path& name) {
    if (name == root_) {
      if (!std::exchange(knows_root_, true)) {
        root_object_ = object_store().find(name);
      }
      return root_object_;
    }
    list_unlocked(name.parent_path());
    return object_in(groups_, name);
  }
  std::optional<ObjectStore::Found> find(const fs::path& name) {
    const std::lock_guard lock(mutex_);
    return find_unlocked(name);
  }

  fs::path root_;
  std::mutex mutex_;  // guards the members below
  std::optional<ObjectStore::Found> root_object_;
  bool knows_root_ = false;
  Groups groups_;
  std::set<fs::path> seen_, absent_;
  std::map<fs::path, Listed> parts_;
};

InputPath::InputPath(fs::path path, Opens) : path_(std::move(path)) {
  if (is_object(path_)) {
    folder_ = std::make_shared<ObjectFolder>(path_);
  } else {
    folder_ = std::make_shared<LocalFolder>(path_);
  }
}

InputPath InputPath::at(fs::path path) const {
  return {std::move(path), folder_};
}

bool InputPath::exists() const {
  return folder_->status(path_).has_value();
}

bool InputPath::is_file() const {
  const auto status = folder_->status(path_);
  return status && status->is_file;
}

bool InputPath::is_folder() const {
  const auto status = folder_->status(path_);
  return status && status->is_folder;
}

std::uint64_t InputPath::nbytes() const {
  const auto status = folder_->status(path_);
  if (!status) {
    throw file_error("read", path_, ENOENT);
  }
  return status->nbytes;
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
  if (is_object(path)) {
    return InputPath(path).open();
  }
  struct stat status {};
  return opened_file(UniqueFd(::open(path.c_str(), kOpenFile)), path, status);
}

std::vector<std::string> files_below(const InputPath& folder) {
  std::vector<std::string> result;
  for (const std::string& name : folder.names()) {
    const InputPath path = folder / name;
    if (path.is_file() && name != kUnfinishedMark) {
      result.push_back(name);
    } else if (path.is_folder()) {
      for (const std::string& below : files_below(path)) {
        result.push_back((fs::path(name) / below).string());
      }
    }
  }
  return result;
}

void InputPath::check_unchanged() const {
  if (folder_) {
    folder_->check_unchanged();
  }
}

}  // namespace acc::checkpoint
