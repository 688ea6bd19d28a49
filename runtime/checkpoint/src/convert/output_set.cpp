// SPDX-License-Identifier: Apache-2.0
#include "convert/output_set.hpp"

#include "acc/base/atomic_file.hpp"
#include "acc/base/error.hpp"
#include "acc/base/object_store.hpp"
#include "acc/base/temporary_folder.hpp"
#include "acc/base/variables.hpp"
#include "acc/base/written_file.hpp"
#include "acc/checkpoint/files/input_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

namespace acc::checkpoint::conversion {

namespace fs = std::filesystem;

OutputSet::OutputSet(fs::path folder) : folder_(std::move(folder)), written_in_(folder_) {
  std::error_code error;
  if (is_object(folder_)) {
    std::string name = fs::path(process_variable("TMPDIR").value_or(default_temporary_folder())) /
                       "acclaunch-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) {
      throw file_error("create the folder", name, errno);
    }
    written_in_ = name;
    made_folder_ = true;
    return;
  }
  made_folder_ = fs::create_directory(folder_, error);
  if (error || !fs::is_directory(folder_)) {
    throw file_error("create the folder", folder_, error ? error.value() : ENOTDIR);
  }
  lock_.reset(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (lock_ && ::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    throw Error(Errc::config, "cannot write to " + folder_.string() +
                                  ": another process writes to it; try again when it has ended");
  }
}

// Removes temporary files, and the folder if this object made it.
OutputSet::~OutputSet() {
  for (std::size_t i = 0; i < files_.size(); ++i) {
    ::unlink(temporary(i).c_str());
  }
  if (made_folder_) {
    ::rmdir(written_in_.c_str());  // fails unless it is empty
  }
}

fs::path OutputSet::temporary(std::size_t file) const {
  return temporary_name(written_in_ / files_[file].path.filename());
}

fs::path OutputSet::add(const std::string& name) {
  check_replaceable(written_in_ / name);
  files_.push_back({folder_ / name, UniqueFd()});
  return temporary(files_.size() - 1);
}

std::size_t OutputSet::add(const std::string& name, std::uint64_t nbytes) {
  const std::size_t number = files_.size();
  const fs::path path = folder_ / name;
  files_.push_back({path, UniqueFd()});
  files_.back().fd = create_replacement(written_in_ / name, temporary(number), O_RDWR);
  // Sets the size, so that threads can write at any place. The file is sparse until they do.
  if (::ftruncate(files_.back().fd.get(), static_cast<off_t>(nbytes)) != 0) {
    throw file_error("make room in", temporary(number), errno);
  }
  return number;
}

void OutputSet::write(std::size_t file, std::uint64_t offset,
                      std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t count =
        ::pwrite(files_[file].fd.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno != EINTR) {
      throw file_error("write", temporary(file), errno);
    }
    const std::size_t done = count > 0 ? static_cast<std::size_t>(count) : 0;
    bytes = bytes.subspan(done);
    offset += done;
  }
}

void OutputSet::read(std::size_t file, std::uint64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t count =
        ::pread(files_[file].fd.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno != EINTR) {
      throw file_error("read", temporary(file), errno);
    }
    if (count == 0) {
      throw Error(Errc::config, temporary(file).string() + " was truncated while it was written");
    }
    const std::size_t done = count > 0 ? static_cast<std::size_t>(count) : 0;
    bytes = bytes.subspan(done);
    offset += done;
  }
}

// All files reach the disk before the first one gets its name. The order of the renames is the
// order of `add`: an index, added last, appears only after the files that it names.
std::vector<fs::path> OutputSet::commit(const InputPath& from) {
  for (std::size_t i = 0; i < files_.size(); ++i) {
    UniqueFd& fd = files_[i].fd;
    if (fd && (::fsync(fd.get()) != 0 || ::close(fd.release()) != 0)) {
      throw file_error("flush", temporary(i), errno);
    }
  }
  from.check_unchanged();
  std::vector<fs::path> paths;
  for (std::size_t i = 0; i < files_.size(); ++i) {
    if (is_object(folder_)) {
      copy_flushed(temporary(i), files_[i].path);
      ::unlink(temporary(i).c_str());
    } else {
      replace_file(temporary(i), files_[i].path);
    }
    paths.push_back(files_[i].path);
  }
  files_.clear();
  return paths;
}

void copy_flushed(const InputPath& from, const fs::path& to) {
  constexpr std::uint64_t kPiece = 1 << 20;
  const InputFile file(from);
  OutputFile out(to);
  out.reserve(file.nbytes());
  std::vector<std::byte> buffer(kPiece);
  for (std::uint64_t done = 0; done < file.nbytes(); done += buffer.size()) {
    buffer.resize(std::min<std::uint64_t>(buffer.size(), file.nbytes() - done));
    file.read(done, buffer);
    out.write(buffer);
  }
  out.close();
}

// The process id serves as the attempt's id: one conversion is one process.
NewFolder::NewFolder(const fs::path& target,
                     const std::function<bool(const std::string& path)>& is_ours, bool overwrite,
                     const std::vector<std::string>& folders)
    : folder_(target, is_ours, static_cast<std::uint32_t>(::getpid())), overwrite_(overwrite) {
  check_free();
  folder_.begin();
  folder_.make(folders);
}

void NewFolder::check_free() const {
  const fs::path& target = folder_.target();
  const bool is_there = !is_object(target) && fs::exists(target) &&
                        !(fs::is_directory(target) && fs::is_empty(target));
  if (is_there && !overwrite_) {
    throw Error(Errc::config, target.string() +
                                  " already exists; choose another folder, or --overwrite to "
                                  "replace the checkpoint in it");
  }
}

NewFolder::~NewFolder() {
  if (!committed_) {
    folder_.abandon();
  }
}

fs::path NewFolder::commit(const InputPath& from) {
  from.check_unchanged();
  check_free();  // another process may have written it meanwhile
  folder_.commit();
  committed_ = true;
  return folder_.target();
}

}  // namespace acc::checkpoint::conversion
