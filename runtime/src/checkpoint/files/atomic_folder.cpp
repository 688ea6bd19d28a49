#include "checkpoint/files/atomic_folder.hpp"

#include "acc/base/atomic_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <utility>
#include <vector>

namespace acc::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr const char* kTemporary = ".acc-tmp.";
constexpr const char* kRemoved = ".acc-tmp.removed";

// Absolute, without links and without a slash at the end.
fs::path resolved(const fs::path& path) {
  std::error_code error;
  fs::path result = fs::weakly_canonical(fs::absolute(path), error);
  if (error) {
    throw file_error("resolve", path, error.value());
  }
  return result.has_filename() ? result : result.parent_path();
}

// Also a link that leads nowhere.
bool is_there(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  if (error && status.type() != fs::file_type::not_found) {
    throw file_error("look at", path, error.value());
  }
  return fs::exists(status);
}

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

// Does not follow links.
template <typename Iterator>
std::vector<fs::directory_entry> entries_of(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::directory_entry> entries;
  for (Iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    entries.push_back(*it);
  }
  if (error) {
    throw file_error("read the folder", folder, error.value());
  }
  return entries;
}

bool is_real_folder(const fs::directory_entry& entry) {
  std::error_code ignored;
  return entry.symlink_status(ignored).type() == fs::file_type::directory;
}

void rename_folder(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    throw file_error("rename " + from.string() + " to", to, errno);
  }
}

void clear_away(const fs::path& folder) {
  std::error_code error;
  fs::remove_all(folder, error);
  if (error) {
    throw file_error("remove", folder, error.value());
  }
}

// Of several processes that make the same folder at once, all succeed. Tells which made it.
bool make_folder(const fs::path& folder) {
  if (::mkdir(folder.c_str(), 0777) == 0) {
    return true;
  }
  const int reason = errno;
  if (!is_folder(folder)) {
    throw file_error("create the folder", folder, reason);
  }
  return false;
}

// Their names survive a crash of the machine: what is put into them does.
void make_parents(const fs::path& folder) {
  fs::path path;
  for (const fs::path& part : folder) {
    path /= part;
    if (make_folder(path)) {
      sync_folder(folder_of(path));
    }
  }
}

// What is mounted there cannot be exchanged for a folder beside it.
void check_not_mounted(const fs::path& folder) {
  struct stat own {};
  struct stat parent {};
  if (::stat(folder.c_str(), &own) != 0 || ::stat(folder_of(folder).c_str(), &parent) != 0) {
    throw file_error("look at", folder, errno);
  }
  if (own.st_dev != parent.st_dev) {
    throw Error(Errc::config, "cannot replace " + folder.string() +
                                  ": a file system is mounted there; choose a folder in it");
  }
}

void sync_folders(const fs::path& top) {
  for (const auto& entry : entries_of<fs::recursive_directory_iterator>(top)) {
    if (is_real_folder(entry)) {
      sync_folder(entry.path());
    }
  }
  sync_folder(top);
}

}  // namespace

void remove_at_once(const fs::path& folder) {
  if (!is_there(folder)) {
    return;
  }
  fs::path removed = folder;
  if (!folder.string().ends_with(kRemoved)) {
    removed += kRemoved;
    clear_away(removed);
    rename_folder(folder, removed);
  }
  clear_away(removed);
}

AtomicFolder::AtomicFolder(const fs::path& target, std::function<bool(const std::string&)> is_ours,
                           std::uint32_t id)
    : target_(resolved(target)),
      temporary_(target_.string() + kTemporary + std::to_string(id)),
      old_(target_.string() + ".acc-old"),
      is_ours_(std::move(is_ours)) {}

void AtomicFolder::check_ours(const fs::path& folder) const {
  if (!is_folder(folder)) {
    throw Error(Errc::config,
                "cannot write the folder " + folder.string() + ": a file of that name is there");
  }
  for (const auto& entry : entries_of<fs::recursive_directory_iterator>(folder)) {
    const std::string path = entry.path().lexically_relative(folder).generic_string();
    if (!is_real_folder(entry) && !is_ours_(path)) {
      throw Error(Errc::config, "will not replace " + folder.string() + ": it holds '" + path +
                                    "', which is no part of a checkpoint; choose another folder");
    }
  }
}

// Away from its name first: of a process that wakes up over it, the commit must fail rather than
// exchange the target for half a folder.
void AtomicFolder::remove_ours(const fs::path& folder) const {
  if (!is_there(folder)) {
    return;
  }
  check_ours(folder);
  const fs::path removed = target_.string() + kRemoved;
  if (folder != removed) {
    remove_ours(removed);
    rename_folder(folder, removed);
  }
  clear_away(removed);
}

void AtomicFolder::remove_predecessors() const {
  const fs::path parent = folder_of(target_);
  if (!is_there(parent)) {
    return;
  }
  const std::string prefix = target_.filename().string() + kTemporary;
  for (const auto& entry : entries_of<fs::directory_iterator>(parent)) {
    if (entry.path().filename().string().starts_with(prefix) && entry.path() != temporary_) {
      remove_ours(entry.path());
    }
  }
}

void AtomicFolder::make(const std::vector<std::string>& folders) {
  if (!made_) {
    make_parents(folder_of(temporary_));
    make_folder(temporary_);
    made_ = true;
  }
  for (const std::string& folder : folders) {
    fs::path path = temporary_;
    for (const fs::path& part : fs::path(folder)) {
      path /= part;
      make_folder(path);
    }
  }
}

void AtomicFolder::abandon() noexcept {
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);
}

void AtomicFolder::begin() {
  if (is_there(old_) && !is_there(target_)) {
    rename_folder(old_, target_);
  }
  remove_ours(old_);
  remove_predecessors();
  if (is_there(target_)) {
    check_ours(target_);
    check_not_mounted(target_);
  }
}

void AtomicFolder::commit() {
  if (!is_folder(temporary_)) {
    throw Error(Errc::config, "cannot write the folder " + target_.string() + ": " +
                                  temporary_.string() + " is gone; another save has taken over");
  }
  sync_folders(temporary_);
  if (!is_there(target_)) {
    rename_folder(temporary_, target_);
  } else if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, target_.c_str(),
                         RENAME_EXCHANGE) != 0) {
    if (errno != EINVAL && errno != ENOSYS) {
      throw file_error("exchange " + temporary_.string() + " with", target_, errno);
    }
    replace_in_two_steps();
  }
  sync_folder(folder_of(target_));
  remove_ours(old_);
  remove_ours(temporary_);
}

// For file systems without RENAME_EXCHANGE. Between the two steps only `old_` is there, which
// `current` and `begin` know to look for.
void AtomicFolder::replace_in_two_steps() const {
  rename_folder(target_, old_);
  try {
    rename_folder(temporary_, target_);
  } catch (const Error&) {
    ::rename(old_.c_str(), target_.c_str());
    throw;
  }
}

fs::path AtomicFolder::current() const {
  return !is_there(target_) && is_there(old_) ? old_ : target_;
}

}  // namespace acc::checkpoint
