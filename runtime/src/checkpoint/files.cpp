#include "checkpoint/files.hpp"

#include "acc/base/unique_fd.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace acc::checkpoint {

namespace fs = std::filesystem;

Error file_error(std::string_view action, const fs::path& path, int error_number) {
  return {Errc::config, "cannot " + std::string(action) + " " + path.string() + ": " +
                            std::generic_category().message(error_number)};
}

MappedFile::MappedFile(const fs::path& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0) {
    throw file_error("open", path, errno);
  }
  if (!S_ISREG(status.st_mode)) {
    throw Error(Errc::config, "cannot read " + path.string() + ": not a regular file");
  }
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ == 0) {
    return;
  }
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (address == MAP_FAILED) {
    throw file_error("map", path, errno);
  }
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(const_cast<std::byte*>(data_), size_);
  }
}

AtomicFile::AtomicFile(fs::path path)
    : path_(std::move(path)),
      temporary_(path_.string() + ".tmp"),
      file_(std::fopen(temporary_.c_str(), "wbe")) {
  if (!file_) {
    throw file_error("create", temporary_, errno);
  }
}

AtomicFile::~AtomicFile() {
  if (file_) {
    ::unlink(temporary_.c_str());
  }
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) != bytes.size()) {
    throw file_error("write", temporary_, errno);
  }
}

void AtomicFile::write(std::string_view text) {
  write(std::as_bytes(std::span(text)));
}

void AtomicFile::commit() {
  if (std::fflush(file_.get()) != 0 || ::fsync(::fileno(file_.get())) != 0) {
    throw file_error("write", temporary_, errno);
  }
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    throw file_error("create", path_, errno);
  }
  file_.reset();
  sync_folder(folder_of(path_));
}

void sync_folder(const fs::path& folder) {
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // EINVAL: a file system whose folders need no such call.
  if (!fd || (::fsync(fd.get()) != 0 && errno != EINVAL)) {
    throw file_error("flush the folder", folder, errno);
  }
}

fs::path folder_of(const fs::path& path) {
  const fs::path parent = path.parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

}  // namespace acc::checkpoint
