// SPDX-License-Identifier: Apache-2.0
#include "acc/base/atomic_file.hpp"
#include "acc/base/log.hpp"
#include "acc/base/written_file.hpp"
#include "files/atomic_target.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

// How a folder is replaced, and what a crash at each point leaves (D is the target):
//
//  1. All processes write their files below "D.acc-tmp.ID" and fsync each file. A crash leaves that
//     folder next to the old D. The next `begin` removes it.
//  2. The committing process fsyncs every folder in the temporary one and then that folder itself,
//     so that all names in it are on disk before it gets the name of the target.
//  3. renameat2(RENAME_EXCHANGE) swaps the temporary folder and D in one step. Before it, D is the
//     old checkpoint; after it, D is the new one. No state between the two exists.
//  4. fsync of the parent folder makes the swap survive a crash of the machine.
//  5. The old content, now under the temporary name, is renamed to "D.acc-tmp.removed" and then
//     deleted. A crash leaves a part of it under that name. The next `begin` deletes the rest.
//
// Two variants of step 3 exist. If there is no D yet, or must not be one (`Existing::refuse`), it
// is a plain rename. If the file system cannot exchange folders, `replace_in_steps` renames the
// temporary folder to "D.acc-new", fsyncs the parent, moves D away, and renames "D.acc-new" to D.
// From the first of these renames on, "D.acc-new" is the newest complete checkpoint. `current`
// prefers it, and the next `begin` completes the renames.
namespace acc::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr const char* kTemporary = ".acc-tmp.";
constexpr const char* kRemoved = ".acc-tmp.removed";

// Returns the path as absolute, without symbolic links and without a slash at the end.
fs::path resolved(const fs::path& path) {
  std::error_code error;
  fs::path result = fs::weakly_canonical(fs::absolute(path), error);
  if (error) {
    throw file_error("resolve", path, error.value());
  }
  return result.has_filename() ? result : result.parent_path();
}

// True if anything has this name, including a symbolic link that leads nowhere.
bool is_there(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  if (error && status.type() != fs::file_type::not_found) {
    throw file_error("access", path, error.value());
  }
  return fs::exists(status);
}

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

// Lists a folder (recursively with recursive_directory_iterator). Does not follow symbolic links.
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

// Deletes a folder and all in it, children before parents. Continues after a file that cannot be
// deleted, because a checkpoint is large and its other files still take space. Throws the first
// failure at the end. ENOENT is no failure: another process may delete the same leftovers.
void clear_away(const fs::path& folder) {
  std::vector<fs::directory_entry> entries = {fs::directory_entry(folder)};
  if (is_real_folder(entries[0])) {
    std::ranges::copy(entries_of<fs::recursive_directory_iterator>(folder),
                      std::back_inserter(entries));
  }
  fs::path failed;
  int reason = 0;
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    const char* const path = entry->path().c_str();
    const int result = is_real_folder(*entry) ? ::rmdir(path) : ::unlink(path);
    if (result != 0 && errno != ENOENT && reason == 0) {
      reason = errno;
      failed = entry->path();
    }
  }
  if (reason != 0) {
    throw file_error("remove", failed, reason);
  }
}

// Returns an unused name for a folder that is about to be deleted: "<target>.acc-tmp.removed", with
// a number appended if the leftovers of an earlier removal have that name.
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

// Creates a folder unless it exists, so that several processes may create the same one at once.
// Returns true if this process created it.
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

// Creates the missing parent folders and fsyncs the folder above each new one. Without the fsync a
// crash of the machine could lose a parent, and with it the checkpoint.
void make_parents(const fs::path& folder) {
  fs::path path;
  for (const fs::path& part : folder) {
    path /= part;
    if (make_folder(path)) {
      sync_folder(folder_of(path));
    }
  }
}

// Refuses a folder that is a mount point: rename and exchange do not work across file systems.
void check_not_mounted(const fs::path& folder) {
  struct stat own {};
  struct stat parent {};
  if (::stat(folder.c_str(), &own) != 0 || ::stat(folder_of(folder).c_str(), &parent) != 0) {
    throw file_error("access", folder, errno);
  }
  if (own.st_dev != parent.st_dev) {
    throw Error(Errc::not_supported, "cannot replace " + folder.string() +
                                         ": a file system is mounted there; choose a folder in it");
  }
}

// Flushes the names in a folder and its subfolders. The files in them are flushed by their writers.
void sync_folders(const fs::path& top) {
  for (const auto& entry : entries_of<fs::recursive_directory_iterator>(top)) {
    if (is_real_folder(entry)) {
      sync_folder(entry.path());
    }
  }
  sync_folder(top);
}

// Gives the new folder the owner and the mode of the one that it replaces: one that only its user
// can open stays so. Only root can give a folder to another user.
void keep_own_permissions(const fs::path& temporary, const fs::path& target) {
  struct stat status {};
  if (::stat(target.c_str(), &status) == 0 && (status.st_uid == ::geteuid() || ::geteuid() == 0)) {
    keep_permissions(temporary, target);
  }
}

class ReplacedFolder final : public AtomicTarget {
 public:
  ReplacedFolder(const fs::path& path, std::function<bool(const std::string&)> is_ours_of,
                 std::uint32_t id, Existing existing)
      : AtomicTarget(path, path.string() + kTemporary + std::to_string(id), std::move(is_ours_of)),
        new_(path.string() + ".acc-new"),
        existing_(existing) {}

  void make(const std::vector<std::string>& folders) override;
  void begin() override;
  void check_there() const override;
  void commit() override;
  void abandon() noexcept override;
  [[nodiscard]] fs::path current() const override { return is_there(new_) ? new_ : target; }

 private:
  void discard(const fs::path& folder) const;
  void remove_predecessors() const;
  void check_ours(const fs::path& folder) const;
  [[nodiscard]] Error taken_over() const;
  void name_new() const;
  void replace_in_steps() const;
  void put_new_in_place() const;

  fs::path new_;
  Existing existing_;
  bool made_ = false;
};

}  // namespace

void remove_folder_at_once(const fs::path& folder) {
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
  // A folder that has its temporary name is not taken for a checkpoint, so it can be deleted in
  // place. Any other folder must lose its name first.
  if (name.find(kTemporary) == std::string::npos) {
    throw file_error("rename " + folder.string() + " to", removed, reason);
  }
  clear_away(folder);
}

namespace {

void ReplacedFolder::check_ours(const fs::path& folder) const {
  if (!is_folder(folder)) {
    throw Error(Errc::config,
                "cannot write the folder " + folder.string() + ": a file with that name exists");
  }
  for (const auto& entry : entries_of<fs::recursive_directory_iterator>(folder)) {
    const std::string path = entry.path().lexically_relative(folder).generic_string();
    if (!is_real_folder(entry) && !is_ours(path)) {
      throw Error(Errc::config, "will not replace " + folder.string() + ": it holds '" + path +
                                    "', which is not part of a checkpoint; choose another folder");
    }
  }
}

// Deletes a folder, or warns. The folder loses its name first. Otherwise a process that was
// suspended and wakes up during the deletion could commit, and exchange the target for half a
// folder.
void ReplacedFolder::discard(const fs::path& folder) const {
  try {
    if (is_there(folder)) {
      check_ours(folder);
      remove_folder_at_once(folder);
    }
  } catch (const Error& error) {
    logger(Component::runtime)
        .warn("{}; it stays on disk, and the next save to {} tries again", error.what(),
              target.string());
  }
}

// Deletes temporary folders of earlier attempts (any id but this one's) and unfinished removals.
void ReplacedFolder::remove_predecessors() const {
  const fs::path parent = folder_of(target);
  if (!is_there(parent)) {
    return;
  }
  const std::string prefix = target.filename().string() + kTemporary;
  for (const auto& entry : entries_of<fs::directory_iterator>(parent)) {
    if (entry.path().filename().string().starts_with(prefix) && entry.path() != temporary) {
      check_ours(entry.path());
      discard(entry.path());
    }
  }
}

void ReplacedFolder::make(const std::vector<std::string>& folders) {
  if (!made_) {
    make_parents(folder_of(temporary));
    make_folder(temporary);
    made_ = true;
  }
  for (const std::string& folder : folders) {
    fs::path path = temporary;
    for (const fs::path& part : fs::path(folder)) {
      path /= part;
      make_folder(path);
    }
  }
}

// Leftovers of a failed removal are found by the next `begin`.
void ReplacedFolder::abandon() noexcept {
  try {
    clear_away(temporary);
  } catch (const std::exception&) {
  }
}

// Steps that a predecessor did not reach come first: "D.acc-new" is newer than D and must not be
// treated as a leftover.
void ReplacedFolder::begin() {
  if (is_there(new_)) {
    check_ours(new_);
    put_new_in_place();
  }
  remove_predecessors();
  if (is_there(target)) {
    check_ours(target);
    check_not_mounted(target);
  }
}

Error ReplacedFolder::taken_over() const {
  return {Errc::config,
          "cannot write the folder " + target.string() + ": " + temporary.string() +
              " is gone: another job saves to the same folder (or a later attempt of this job); "
              "give each job its own folder"};
}

void ReplacedFolder::check_there() const {
  if (made_ && !is_folder(temporary)) {
    throw taken_over();
  }
}

void ReplacedFolder::commit() {
  if (!is_folder(temporary)) {
    throw taken_over();
  }
  if (existing_ != Existing::refuse) {
    keep_own_permissions(temporary, target);
  }
  sync_folders(temporary);
  if (existing_ == Existing::refuse) {
    name_new();
  } else if (!is_there(target)) {
    rename_folder(temporary, target);
  } else if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) !=
             0) {
    // EINVAL or ENOSYS: the file system or kernel has no RENAME_EXCHANGE. EXDEV: the target is in
    // the lower layer of an overlayfs.
    if (errno != EINVAL && errno != ENOSYS && errno != EXDEV) {
      throw file_error("exchange " + temporary.string() + " with", target, errno);
    }
    replace_in_steps();
  }
  sync_folder(folder_of(target));
  discard(temporary);
}

// Renames the temporary folder to a target that must not exist. rename(2) itself is the check: it
// fails for a folder that is not empty, so that no time passes between check and rename.
void ReplacedFolder::name_new() const {
  if (::rename(temporary.c_str(), target.c_str()) == 0) {
    return;
  }
  if (errno == ENOTEMPTY || errno == EEXIST) {
    throw Error(Errc::config, target.string() +
                                  " appeared during this save: another job saves to the "
                                  "same series; give each job its own folder");
  }
  throw file_error("rename " + temporary.string() + " to", target, errno);
}

// Replacement on file systems that cannot exchange two folders. From the first rename on, `new_` is
// the newest checkpoint. `current` and `begin` look for it, because the target may be half removed.
void ReplacedFolder::replace_in_steps() const {
  rename_folder(temporary, new_);
  sync_folder(folder_of(target));
  try {
    put_new_in_place();
  } catch (const Error& error) {
    throw Error(Errc::config, std::string(error.what()) + "; the new checkpoint is complete in " +
                                  new_.string() + ", which acclaunch reads instead of " +
                                  target.string());
  }
}

// Moves the old target away and renames "D.acc-new" to D. Repeating it after a crash is safe: a
// target that is already away is skipped.
void ReplacedFolder::put_new_in_place() const {
  const fs::path removed = name_for_removal(target);
  if (is_there(target)) {
    check_ours(target);
    if (::rename(target.c_str(), removed.c_str()) != 0) {
      if (errno != EXDEV) {
        throw file_error("rename " + target.string() + " to", removed, errno);
      }
      // A folder of an overlayfs's lower layer cannot be renamed. It is deleted in place.
      clear_away(target);
    }
  }
  rename_folder(new_, target);
  discard(removed);
}

}  // namespace

std::unique_ptr<AtomicTarget> replaced_folder(const fs::path& target,
                                              std::function<bool(const std::string&)> is_ours,
                                              std::uint32_t id, Existing existing) {
  return std::make_unique<ReplacedFolder>(resolved(target), std::move(is_ours), id, existing);
}

}  // namespace acc::checkpoint
