#include "checkpoint/files/atomic_folder.hpp"

#include "acc/base/atomic_file.hpp"

#include <fcntl.h>

#include <cerrno>
#include <cstdio>
#include <utility>
#include <vector>

namespace acc::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr const char* kTemporary = ".acc-tmp.";

// Absolute, without links and without a slash at the end.
fs::path resolved(const fs::path& path) {
  std::error_code error;
  fs::path result = fs::weakly_canonical(fs::absolute(path), error);
  if (error) {
    throw file_error("resolve", path, error.value());
  }
  return result.has_filename() ? result : result.parent_path();
}

void rename_folder(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    throw file_error("rename " + from.string() + " to", to, errno);
  }
}

}  // namespace

AtomicFolder::AtomicFolder(const fs::path& target, std::function<bool(const std::string&)> is_ours,
                           std::uint32_t id)
    : target_(resolved(target)),
      temporary_(target_.string() + kTemporary + std::to_string(id)),
      old_(target_.string() + ".acc-old"),
      is_ours_(std::move(is_ours)) {}

void AtomicFolder::check_ours(const fs::path& folder) const {
  if (!fs::is_directory(folder)) {
    throw Error(Errc::config,
                "cannot write the folder " + folder.string() + ": a file of that name is there");
  }
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!is_ours_(entry.path().filename().string())) {
      throw Error(Errc::config, "will not replace " + folder.string() + ": it holds '" +
                                    entry.path().filename().string() +
                                    "', which is no part of a checkpoint; choose another folder");
    }
  }
}

void AtomicFolder::remove_ours(const fs::path& folder) const {
  if (!fs::exists(fs::symlink_status(folder))) {
    return;
  }
  check_ours(folder);
  std::error_code error;
  fs::remove_all(folder, error);
  if (error) {
    throw file_error("remove", folder, error.value());
  }
}

void AtomicFolder::remove_predecessors() const {
  const fs::path parent = folder_of(target_);
  if (!fs::exists(parent)) {
    return;
  }
  const std::string prefix = target_.filename().string() + kTemporary;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(parent)) {
    if (entry.path().filename().string().starts_with(prefix)) {
      found.push_back(entry.path());
    }
  }
  for (const fs::path& folder : found) {
    remove_ours(folder);
  }
}

void AtomicFolder::make(const std::vector<std::string>& folders) const {
  std::error_code error;
  fs::create_directories(temporary_, error);
  for (const std::string& folder : folders) {
    if (!error) {
      fs::create_directories(temporary_ / folder, error);
    }
  }
  if (error) {
    throw file_error("create the folder", temporary_, error.value());
  }
}

void AtomicFolder::abandon() noexcept {
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);
}

void AtomicFolder::begin() {
  if (fs::exists(old_) && !fs::exists(target_)) {
    rename_folder(old_, target_);
  }
  remove_ours(old_);
  remove_predecessors();
  if (fs::exists(target_)) {
    check_ours(target_);
  }
}

void AtomicFolder::commit() {
  sync_folder(temporary_);
  if (!fs::exists(target_)) {
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
  rename_folder(temporary_, target_);
}

fs::path AtomicFolder::current() const {
  return !fs::exists(target_) && fs::exists(old_) ? old_ : target_;
}

}  // namespace acc::checkpoint
