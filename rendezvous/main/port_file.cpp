// SPDX-License-Identifier: Apache-2.0
#include "port_file.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace acc::rendezvous {
namespace {

ino_t inode_of(const std::filesystem::path& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 ? status.st_ino : 0;
}

}  // namespace

PortFile::PortFile(std::filesystem::path path) : path_(std::move(path)) {
  if (path_.empty()) {
    return;
  }
  next_.emplace(path_);
  if (::unlink(path_.c_str()) != 0 && errno != ENOENT) {
    throw file_error("remove", path_, errno);
  }
}

void PortFile::write(std::string_view text) {
  if (next_) {
    next_->write(text);
    next_->commit();
    next_.reset();
    written_ = inode_of(path_);
  }
}

void PortFile::remove() {
  next_.reset();
  if (written_ != 0 && inode_of(path_) == written_) {
    ::unlink(path_.c_str());
  }
  written_ = 0;
}

}  // namespace acc::rendezvous
