// SPDX-License-Identifier: Apache-2.0
#include "data/mapped_file.hpp"

#include <acc/base/error.hpp>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace train_gpt {
namespace {

[[noreturn]] void fail_to_read(const std::string& path, int error) {
  throw acc::Error(acc::Errc::config,
                   "cannot read " + path + ": " + std::generic_category().message(error));
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status {};
  if (fd < 0 || ::fstat(fd, &status) != 0) {
    fail_to_read(path, errno);
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  // mmap refuses a length of 0 (EINVAL). The mapping stays valid after the descriptor is closed.
  void* memory = size == 0 ? nullptr : ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  const int error = errno;
  ::close(fd);
  if (memory == MAP_FAILED) {
    fail_to_read(path, error);
  }
  bytes_ = {static_cast<const std::uint8_t*>(memory), size};
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) {
    ::munmap(const_cast<std::uint8_t*>(bytes_.data()), bytes_.size());
  }
}

void fail_outside_vocabulary(const std::string& path, const std::string& where, std::int64_t id,
                             std::int64_t vocab) {
  throw acc::Error(acc::Errc::config, path + ": token id " + std::to_string(id) + " at " + where +
                                          " is outside the vocabulary, expected 0 to " +
                                          std::to_string(vocab - 1));
}

}  // namespace train_gpt
