// SPDX-License-Identifier: Apache-2.0
#include "acc/base/output_file.hpp"

#include "acc/base/atomic_file.hpp"
#include "acc/base/written_file.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace acc {

namespace {

// Smaller writes are collected in the buffer. At 64 KiB per write(2) the cost of the system call is
// negligible next to the cost of copying the data.
constexpr std::size_t kBufferBytes = 64 << 10;

}  // namespace

OutputFile::OutputFile(std::filesystem::path path) : path_(std::move(path)) {
  if (is_object(path_)) {
    object_ = object_store().create(path_);
  } else {
    fd_ = create_file(path_);
  }
  buffer_.reserve(kBufferBytes);
}

OutputFile::OutputFile(std::filesystem::path path, UniqueFd file)
    : path_(std::move(path)), fd_(std::move(file)) {
  buffer_.reserve(kBufferBytes);
}

OutputFile::~OutputFile() {
  if (fd_) {
    ::unlink(path_.c_str());
  }
}

void OutputFile::write_through(std::span<const std::byte> bytes) {
  if (object_) {
    object_->write(bytes);
    written_ += bytes.size();
    return;
  }
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd_.get(), bytes.data(), bytes.size());
    if (count < 0 && errno != EINTR) {
      throw file_error("write", path_, errno);
    }
    const std::size_t done = count > 0 ? static_cast<std::size_t>(count) : 0;
    bytes = bytes.subspan(done);
    written_ += done;
  }
}

void OutputFile::flush() {
  write_through(std::as_bytes(std::span(buffer_)));
  buffer_.clear();
}

// Small writes are copied to the buffer. A write of at least kBufferBytes goes to the kernel
// directly, after the buffer, so that bytes stay in order.
void OutputFile::write(std::span<const std::byte> bytes) {
  if (buffer_.size() + bytes.size() <= kBufferBytes) {
    buffer_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return;
  }
  flush();
  if (bytes.size() < kBufferBytes) {
    buffer_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  } else {
    write_through(bytes);
  }
}

void OutputFile::write(std::string_view text) {
  write(std::as_bytes(std::span(text)));
}

void OutputFile::reserve(std::uint64_t nbytes) {
  if (object_) {
    return object_->expect(nbytes);
  }
  // On a tmpfs, fallocate would clear the pages that the data overwrites anyway; this takes a tenth
  // of the time of writing them.
  struct statfs system {};
  if (::fstatfs(fd_.get(), &system) == 0 && system.f_type == TMPFS_MAGIC) {
    return;
  }
  int result = 0;
  do {
    result = ::fallocate(fd_.get(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(nbytes));
  } while (result != 0 && errno == EINTR);
  // Only errors that mean "too little space" count. EOPNOTSUPP and the like mean that the file
  // system has no fallocate, which is no reason to fail.
  if (result != 0 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)) {
    throw file_error("make room for " + std::to_string(nbytes) + " bytes in", path_, errno);
  }
}

void OutputFile::close() {
  flush();
  if (object_) {
    return object_->finish();
  }
  if (::fsync(fd_.get()) != 0) {
    throw file_error("flush", path_, errno);
  }
  // NFS and other network file systems may report a failed write only at close. The descriptor is
  // closed even if close fails, hence release().
  if (::close(fd_.release()) != 0) {
    const int error = errno;
    ::unlink(path_.c_str());
    throw file_error("close", path_, error);
  }
}

}  // namespace acc
