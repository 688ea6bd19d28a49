#include "files/mapped_file.hpp"

#include "acc/base/atomic_file.hpp"
#include "acc/base/unique_fd.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace acc::checkpoint {

namespace fs = std::filesystem;

MappedFile::MappedFile(const fs::path& path) {
  // O_NONBLOCK: opening a named pipe would otherwise wait for its writer.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0) {
    throw file_error("open", path, errno);
  }
  if (!S_ISREG(status.st_mode)) {
    throw Error(Errc::config, "cannot read " + path.string() + ": not a regular file");
  }
  size_ = static_cast<std::size_t>(status.st_size);
  // mmap refuses a length of 0.
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

}  // namespace acc::checkpoint
