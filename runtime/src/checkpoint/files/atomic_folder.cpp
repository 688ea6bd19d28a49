#include "checkpoint/files/atomic_folder.hpp"

#include "acc/base/atomic_file.hpp"
#include "acc/base/log.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <iterator>
#include <ranges>
#include <string>
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

// Goes on after a file that cannot be removed: a checkpoint is large, and its rest takes room.
void clear_away(const fs::path& folder) {
  std::vector<fs::directory_entry> entries = {fs::directory_entry(folder)};
  if (is_real_folder(entries[0])) {
    std::ranges::copy(entries_of<fs::recursive_directory_iterator>(folder),
                      std::back_inserter(entries));
  }
  fs::path failed;
  int reason = 0;
  for (const auto& entry : entries | std::views::reverse) {
    const char* const path = entry.path().c_str();
    const int result = is_real_folder(entry) ? ::rmdir(path) : ::unlink(path);
    if (result != 0 && errno != ENOENT && reason == 0) {
      reason = errno;
      failed = entry.path();
    }
  }
  if (reason != 0) {
    throw file_error("remove", failed, reason);
  }
}

// A free name for what is to be removed, beside the target that `folder` is or was a temporary form
// of. Another removal may have left the first such name.
fs::path name_for_removal(const fs::path& folder) {
  const std::string name = folder.filename().string();
  const fs::path removed =
      folder_of(folder) / (name.substr(0, name.rfind(kTemporary)) + std::string(kRemoved));
  fs::path result = removed;
  for (int number = 1; is_there(result); ++number) {
    result = removed.string() + "." + std::to_string(number);
  }
  return result;
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
  const std::string name = folder.filename().string();
  if (name.find(kRemoved) != std::string::npos) {
    return clear_away(folder);
  }
  const fs::path removed = name_for_removal(folder);
  if (::rename(folder.c_str(), removed.c_str()) == 0) {
    return clear_away(removed);
  }
  const int reason = errno;
  if (name.find(kTemporary) == std::string::npos) {
    throw file_error("rename " + folder.string() + " to", removed, reason);
  }
  clear_away(folder);
}

AtomicFolder::AtomicFolder(const fs::path& target, std::function<bool(const std::string&)> is_ours,
                           std::uint32_t id, Existing existing)
    : target_(resolved(target)),
      temporary_(target_.string() + kTemporary + std::to_string(id)),
      new_(target_.string() + ".acc-new"),
      is_ours_(std::move(is_ours)),
      existing_(existing) {}

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
void AtomicFolder::discard(const fs::path& folder) const {
  try {
    if (is_there(folder)) {
      check_ours(folder);
      remove_at_once(folder);
    }
  } catch (const Error& error) {
    logger("runtime")->warn("{}; it stays, and the next save to {} tries again", error.what(),
                            target_.string());
  }
}

void AtomicFolder::remove_predecessors() const {
  const fs::path parent = folder_of(target_);
  if (!is_there(parent)) {
    return;
  }
  const std::string prefix = target_.filename().string() + kTemporary;
  for (const auto& entry : entries_of<fs::directory_iterator>(parent)) {
    if (entry.path().filename().string().starts_with(prefix) && entry.path() != temporary_) {
      check_ours(entry.path());
      discard(entry.path());
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
  try {
    clear_away(temporary_);
  } catch (const std::exception&) {  // the next save tries again
  }
}

void AtomicFolder::begin() {
  if (is_there(new_)) {
    check_ours(new_);
    put_new_in_place();
  }
  remove_predecessors();
  if (is_there(target_)) {
    check_ours(target_);
    check_not_mounted(target_);
  }
}

Error AtomicFolder::taken_over() const {
  return {Errc::config,
          "cannot write the folder " + target_.string() + ": " + temporary_.string() +
              " is gone: another job saves to the same folder, or a later attempt of this job; "
              "give each job a folder of its own"};
}

void AtomicFolder::check_there() const {
  if (made_ && !is_folder(temporary_)) {
    throw taken_over();
  }
}

void AtomicFolder::commit() {
  if (!is_folder(temporary_)) {
    throw taken_over();
  }
  sync_folders(temporary_);
  if (existing_ == Existing::refuse) {
    name_new();
  } else if (!is_there(target_)) {
    rename_folder(temporary_, target_);
  } else if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, target_.c_str(),
                         RENAME_EXCHANGE) != 0) {
    // EXDEV: the target is of the lower layer of an overlayfs.
    if (errno != EINVAL && errno != ENOSYS && errno != EXDEV) {
      throw file_error("exchange " + temporary_.string() + " with", target_, errno);
    }
    replace_in_steps();
  }
  sync_folder(folder_of(target_));
  discard(temporary_);
}

void AtomicFolder::name_new() const {
  if (::rename(temporary_.c_str(), target_.c_str()) == 0) {
    return;
  }
  if (errno == ENOTEMPTY || errno == EEXIST) {
    throw Error(Errc::config, target_.string() +
                                  " has appeared while it was saved here: another job saves to the "
                                  "same series; give each job a folder of its own");
  }
  throw file_error("rename " + temporary_.string() + " to", target_, errno);
}

// For file systems that cannot exchange the two. From the first step on `new_` is the checkpoint,
// which `current` and `begin` know to look for; the target may be half removed.
void AtomicFolder::replace_in_steps() const {
  rename_folder(temporary_, new_);
  sync_folder(folder_of(target_));
  try {
    put_new_in_place();
  } catch (const Error& error) {
    throw Error(Errc::config, std::string(error.what()) + "; the new checkpoint is complete in " +
                                  new_.string() + ", which acclaunch reads in place of " +
                                  target_.string());
  }
}

void AtomicFolder::put_new_in_place() const {
  const fs::path removed = name_for_removal(target_);
  if (is_there(target_)) {
    check_ours(target_);
    if (::rename(target_.c_str(), removed.c_str()) != 0) {
      if (errno != EXDEV) {
        throw file_error("rename " + target_.string() + " to", removed, errno);
      }
      clear_away(target_);
    }
  }
  rename_folder(new_, target_);
  discard(removed);
}

fs::path AtomicFolder::current() const {
  return is_there(new_) ? new_ : target_;
}

}  // namespace acc::checkpoint
