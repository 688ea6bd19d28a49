// SPDX-License-Identifier: Apache-2.0
#include "swap/swap_file.hpp"

#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "acc/base/written_file.hpp"
#include "swap/transfers.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <utility>

namespace acc::swap {
namespace {

/// Creates a file that has no name. File systems without O_TMPFILE (NFS, older overlayfs) give it
/// one for a moment.
UniqueFd create_nameless(const std::string& folder) {
  UniqueFd file(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (file || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) {
    return file;
  }
  const std::string path =
      fmt::format("{}/.acc-nvme-{}-{:08x}", folder, ::getpid(), std::random_device{}());
  file = create_file(path, O_RDWR, 0600);
  ::unlink(path.c_str());
  return file;
}

}  // namespace

SwapFile::SwapFile(std::string folder, std::string setting)
    : folder_(std::move(folder)), setting_(std::move(setting)) {
  const auto failed = [this](const std::string& reason) {
    return Error(Errc::config,
                 fmt::format("offload to nvme: cannot make a file in {}: {}", describe(), reason));
  };
  try {
    file_ = create_nameless(folder_);
  } catch (const Error& error) {
    throw failed(error.what());
  }
  if (!file_) {
    throw failed(std::strerror(errno));
  }
}

std::uint64_t SwapFile::allocate(std::size_t nbytes) {
  reserve(nbytes);
  const std::uint64_t offset = std::exchange(end_, end_ + nbytes);
  nbytes_ += nbytes;
  if (offset == 0) {
    choose_direct();
  }
  return offset;
}

/// A file system without fallocate(2) (NFS 3, some of FUSE) cannot promise the space; it is
/// compared with what is free.
void SwapFile::reserve(std::size_t nbytes) {
  int error = 0;
  while (::fallocate(file_.get(), 0, static_cast<off_t>(end_), static_cast<off_t>(nbytes)) != 0) {
    if (error = errno; error != EINTR) {
      break;
    }
    error = 0;
  }
  struct statvfs status {};
  const bool known = ::fstatvfs(file_.get(), &status) == 0;
  const std::uint64_t available =
      known ? static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize : 0;
  if (error == EOPNOTSUPP) {
    error = known && available < nbytes ? ENOSPC : 0;
    if (error == 0 && ::ftruncate(file_.get(), static_cast<off_t>(end_ + nbytes)) != 0) {
      error = errno;
    }
  }
  if (error != 0) {
    throw Error(Errc::config,
                fmt::format("offload to nvme: cannot reserve {} bytes in {}, beside {} bytes that "
                            "this rank has there: {}; {} bytes are free",
                            nbytes, describe(), nbytes_, std::strerror(error), available));
  }
}

/// O_DIRECT is set after the reservation, and tried: a file system may accept the flag and refuse
/// the transfer.
void SwapFile::choose_direct() {
  const int flags = ::fcntl(file_.get(), F_GETFL);
  int error = 0;
  if (::fcntl(file_.get(), F_SETFL, flags | O_DIRECT) != 0) {
    error = errno;
  } else {
    const std::unique_ptr<void, void (*)(void*)> page(std::aligned_alloc(kPage, kPage), &std::free);
    if (::pread(file_.get(), page.get(), kPage, 0) < 0) {
      error = errno;
      ::fcntl(file_.get(), F_SETFL, flags);
    }
  }
  direct_ = error == 0;
  if (!direct_) {
    logger(Component::runtime)
        .debug(
            "offload to nvme: the file system of {} refuses O_DIRECT ({}): transfers go through "
            "the page cache",
            describe(), std::strerror(error));
  }
}

void SwapFile::free(std::uint64_t offset, std::size_t nbytes) noexcept {
  nbytes_ -= nbytes;
  // A file system that cannot do this gives the space back with the file.
  ::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
              static_cast<off_t>(nbytes));
}

}  // namespace acc::swap
