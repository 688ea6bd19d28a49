// SPDX-License-Identifier: Apache-2.0
#include "acc/base/atomic_file.hpp"

#include "acc/base/unique_fd.hpp"
#include "acc/base/written_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace acc {

namespace fs = std::filesystem;

Error file_error(std::string_view action, const fs::path& path, int error_number) {
  return {Errc::config, "cannot " + std::string(action) + " " + path.string() + ": " +
                            std::generic_category().message(error_number)};
}

AtomicFile::AtomicFile(fs::path path)
    : path_(std::move(path)),
      file_(is_object(path_) ? OutputFile(path_)
                             : OutputFile(temporary_name(path_),
                                          create_replacement(path_, temporary_name(path_)))) {}

void AtomicFile::commit() {
  file_.close();
  if (is_object(path_)) {
    return;
  }
  try {
    replace_file(file_.path(), path_);
  } catch (const Error&) {
    ::unlink(file_.path().c_str());
    throw;
  }
}

void check_free(const fs::path& path, Overwrite overwrite) {
  const auto is_there = [&path] {
    std::error_code ignored;
    return is_object(path) ? object_store().find(path).has_value()
                           : fs::exists(fs::symlink_status(path, ignored));
  };
  if (overwrite == Overwrite::no && is_there()) {
    throw Error(Errc::config, path.string() + " exists; choose another name or give --overwrite");
  }
}

void write_file(const fs::path& path, std::string_view text, Overwrite overwrite) {
  check_free(path, overwrite);
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

void sync_folder(const fs::path& folder) {
  if (is_object(folder)) {
    return;
  }
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // EINVAL: the file system does not support fsync on folders (some network file systems).
  if (!fd || (::fsync(fd.get()) != 0 && errno != EINVAL)) {
    throw file_error("flush the folder", folder, errno);
  }
}

fs::path folder_of(const fs::path& path) {
  const fs::path parent = path.parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

}  // namespace acc
