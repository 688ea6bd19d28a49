// SPDX-License-Identifier: Apache-2.0
#include "journal/journal_file.hpp"

#include "acc/base/atomic_file.hpp"
#include "acc/base/file_lock.hpp"
#include "acc/base/log.hpp"
#include "acc/base/written_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <isa-l/crc.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

// The file: a header, then groups. All integers are little-endian.
//   header  "acc-rdzv", u32 version, u32 checksum of version and salt, u64 salt
//   group   "ACCG", u32 checksum of salt, size and entries, u64 size, entries (journal.cpp)
// The checksum is the CRC-32 of zip. The salt is random: bytes that a client has stored cannot
// look like a group. Zeros follow the last group, because disk space is allocated in advance.
namespace acc::rendezvous {
namespace {

static_assert(std::endian::native == std::endian::little, "the log is little-endian");

constexpr std::string_view kMagic = "acc-rdzv";
constexpr std::string_view kGroup = "ACCG";
constexpr std::uint32_t kVersion = 3;
constexpr std::size_t kHeaderBytes = 24;
constexpr std::size_t kGroupBytes = 16;
// A write in allocated space changes no metadata of the file, which makes its flush faster.
constexpr std::uint64_t kAllocatedAtOnce = std::uint64_t{4} << 20;
// Largest buffer of a group that is kept for the next one.
constexpr std::size_t kKeptBuffer = std::size_t{1} << 20;

template <typename T>
void put(char* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

template <typename T>
T get(std::string_view bytes, std::size_t at) {
  T value{};
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

std::uint32_t checksum(std::uint64_t salt, std::string_view bytes) {
  const auto add = [](std::uint32_t crc, const void* data, std::size_t size) {
    return ::crc32_gzip_refl(crc, static_cast<const unsigned char*>(data), size);
  };
  return add(add(0, &salt, sizeof salt), bytes.data(), bytes.size());
}

std::string header(std::uint64_t salt) {
  std::string bytes(kHeaderBytes, '\0');
  kMagic.copy(bytes.data(), kMagic.size());
  put(bytes.data() + 8, kVersion);
  put(bytes.data() + 12, checksum(salt, std::string_view(bytes).substr(8, 4)));
  put(bytes.data() + 16, salt);
  return bytes;
}

std::uint64_t random_salt() {
  std::uint64_t salt = 0;
  if (::getrandom(&salt, sizeof salt, 0) != sizeof salt) {
    throw Error(Errc::internal, "the kernel has no random numbers");
  }
  return salt;
}

/// Reads a file in order, in large pieces.
class FileReader {
 public:
  explicit FileReader(int fd) : fd_(fd) {}

  /// Returns up to `size` bytes at `at`, which must not decrease; fewer at the end of the file.
  /// Valid until the next call. Returns nothing with errno.
  std::optional<std::string_view> read(std::uint64_t at, std::size_t size) {
    if (at + size > begin_ + filled_) {
      const std::size_t kept = at < begin_ + filled_ ? begin_ + filled_ - at : 0;
      std::memmove(buffer_.data(), buffer_.data() + (filled_ - kept), kept);
      begin_ = at;
      filled_ = kept;
      buffer_.resize(std::max({buffer_.size(), size, kPiece}));
      if (!fill()) {
        return std::nullopt;
      }
    }
    const std::size_t offset = at - begin_;
    return std::string_view(buffer_).substr(offset, std::min(size, filled_ - offset));
  }

 private:
  static constexpr std::size_t kPiece = std::size_t{1} << 20;

  /// Fills the buffer; returns false with errno.
  bool fill() {
    while (filled_ < buffer_.size()) {
      const ssize_t count = ::pread(fd_, buffer_.data() + filled_, buffer_.size() - filled_,
                                    static_cast<off_t>(begin_ + filled_));
      if (count < 0 && errno != EINTR) {
        return false;
      }
      if (count == 0) {
        break;
      }
      filled_ += count > 0 ? static_cast<std::size_t>(count) : 0;
    }
    return true;
  }

  int fd_;
  std::string buffer_;
  std::uint64_t begin_ = 0;  // offset of the buffer in the file
  std::size_t filled_ = 0;
};

/// Size of the group at the beginning of `bytes`, if they begin with a whole group.
std::optional<std::size_t> group_at(std::string_view bytes, std::uint64_t salt) {
  if (bytes.size() < kGroupBytes || !bytes.starts_with(kGroup)) {
    return std::nullopt;
  }
  const auto size = get<std::uint64_t>(bytes, 8);
  if (size > bytes.size() - kGroupBytes ||
      checksum(salt, bytes.substr(8, 8 + size)) != get<std::uint32_t>(bytes, 4)) {
    return std::nullopt;
  }
  return kGroupBytes + size;
}

bool is_of_disk(int error) {
  return error == ENOSPC || error == EDQUOT || error == EFBIG || error == EIO ||
         error == EROFS;  // as some file systems become after an error
}

[[noreturn]] void fail(std::string_view action, const std::filesystem::path& path, int error) {
  throw Error(is_of_disk(error) ? Errc::process : Errc::config,
              file_error(action, path, error).what());
}

/// Calls a function of written_file.hpp, which leaves errno as the failed system call has set it,
/// and tells faults of the disk apart as `fail` does.
template <typename Call>
auto on_disk(Call call) {
  errno = 0;
  try {
    return call();
  } catch (const Error& error) {
    if (is_of_disk(errno)) {
      throw Error(Errc::process, error.what());
    }
    throw;
  }
}

}  // namespace

JournalFile::JournalFile(std::filesystem::path folder, bool syncs)
    : folder_(std::move(folder)), file_{.path = folder_ / "log"}, syncs_(syncs) {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error) {
    fail("create", folder_, error.value());
  }
  const std::filesystem::path lock = folder_ / "lock";
  lock_ = on_disk([&] { return open_private_file(lock); });
  if (!try_lock(lock_, lock)) {
    throw Error(Errc::config, fmt::format("another acc-rendezvous uses {}{}: choose another "
                                          "state_dir",
                                          folder_.string(), holder_of_lock(lock_)));
  }
  // A process that was killed has left an unfinished log, which would keep its disk space.
  check_replaceable(new_path());
  if (::unlink(new_path().c_str()) != 0 && errno != ENOENT) {
    fail("remove", new_path(), errno);
  }
}

std::filesystem::path JournalFile::new_path() const {
  return folder_ / "log.new";
}

void JournalFile::read(const Receive& receive) {
  check_replaceable(file_.path);
  file_.fd.reset(::open(file_.path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (file_.fd) {
    read_file(receive);
  } else if (errno == ENOENT) {
    replace({});
  } else {
    fail("open", file_.path, errno);
  }
}

void JournalFile::read_file(const Receive& receive) {
  struct stat status {};
  ::fstat(file_.fd.get(), &status);
  const auto file_size = static_cast<std::uint64_t>(status.st_size);
  FileReader file(file_.fd.get());
  const auto read = [&](std::uint64_t at, std::size_t size) {
    const auto bytes = file.read(at, size);
    if (!bytes) {
      fail("read", file_.path, errno);
    }
    return *bytes;
  };
  const auto damaged = [&](std::uint64_t at, const std::string& what) {
    return Error(Errc::config,
                 fmt::format("{} is damaged at byte {}: {}. Restore the file, or move it away to "
                             "begin without keys and jobs",
                             file_.path.string(), at, what));
  };
  const std::string_view header = read(0, kHeaderBytes);
  if (header.size() < kHeaderBytes || !header.starts_with(kMagic)) {
    throw Error(Errc::config, file_.path.string() +
                                  " is not a log of acc-rendezvous: choose "
                                  "another state_dir");
  }
  file_.salt = get<std::uint64_t>(header, 16);
  if (get<std::uint32_t>(header, 12) != checksum(file_.salt, header.substr(8, 4))) {
    throw damaged(0, "the checksum of the header is wrong");
  }
  if (const auto version = get<std::uint32_t>(header, 8); version != kVersion) {
    throw Error(Errc::not_supported,
                fmt::format("{} has version {}, expected {}: it is the log of {} acc-rendezvous",
                            file_.path.string(), version, kVersion,
                            version > kVersion ? "a newer" : "another"));
  }
  std::uint64_t at = kHeaderBytes;
  while (true) {
    const std::string_view begin = read(at, kGroupBytes);
    const bool is_group = begin.size() == kGroupBytes && begin.starts_with(kGroup);
    const std::uint64_t size = is_group ? get<std::uint64_t>(begin, 8) : 0;
    if (!is_group || size > file_size - at - kGroupBytes) {
      break;
    }
    const std::string_view group = read(at, kGroupBytes + size);
    if (!group_at(group, file_.salt)) {
      break;
    }
    if (!receive(group.substr(kGroupBytes))) {
      throw damaged(at, "an entry is longer than its group");
    }
    at += kGroupBytes + size;
  }
  // The group that was being written may follow, or nothing. A whole group behind it would
  // prove that bytes in the middle have changed: its predecessor was complete when it was begun.
  const std::string_view rest = read(at, file_size - std::min(at, file_size));
  for (std::size_t next = rest.find(kGroup); next != std::string::npos;
       next = rest.find(kGroup, next + 1)) {
    if (group_at(rest.substr(next), file_.salt)) {
      throw damaged(at,
                    fmt::format("no whole group begins there, but one does at byte {}", at + next));
    }
  }
  const std::size_t used = rest.find_last_not_of('\0');
  if (used != std::string::npos) {
    logger(Component::rendezvous)
        .warn("{}: the last {} bytes are an unfinished write, which is removed",
              file_.path.string(), used + 1);
  }
  file_.end = file_.allocated = at;
  if (::ftruncate(file_.fd.get(), static_cast<off_t>(at)) != 0) {
    fail("truncate", file_.path, errno);
  }
  sync(file_);
}

void JournalFile::append(std::string_view group) {
  write_group(file_, group);
  if (syncs_) {
    sync(file_);
  }
}

void JournalFile::replace(std::span<const std::string> groups) {
  File next{.path = new_path(), .salt = random_salt()};
  try {
    next.fd = on_disk(
        [&] { return create_replacement(file_.path, next.path, O_RDWR, S_IRUSR | S_IWUSR); });
    write_new(next, groups);
  } catch (const Error&) {
    ::unlink(next.path.c_str());  // else it would keep the disk full
    throw;
  }
  next.path = file_.path;
  file_ = std::move(next);
}

/// Writes a log with these groups and gives it the name of the log.
void JournalFile::write_new(File& next, std::span<const std::string> groups) {
  write_at(next, header(next.salt), 0);
  next.end = kHeaderBytes;
  for (const std::string& group : groups) {
    write_group(next, group);
  }
  if (::fsync(next.fd.get()) != 0) {
    fail("flush", next.path, errno);
  }
  check_replaceable(file_.path);
  if (::rename(next.path.c_str(), file_.path.c_str()) != 0) {
    fail("rename", next.path, errno);
  }
  const UniqueFd folder(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder || ::fsync(folder.get()) != 0) {  // the new name is on the disk
    fail("flush", folder_, errno);
  }
}

void JournalFile::write_group(File& file, std::string_view group) {
  if (group.empty()) {
    return;
  }
  buffer_.assign(kGroupBytes, '\0');
  buffer_.append(group);
  kGroup.copy(buffer_.data(), kGroup.size());
  put(buffer_.data() + 8, std::uint64_t{group.size()});
  put(buffer_.data() + 4, checksum(file.salt, std::string_view(buffer_).substr(8)));
  allocate(file, file.end + buffer_.size());
  write_at(file, buffer_, file.end);
  file.end += buffer_.size();
  if (buffer_.capacity() > kKeptBuffer) {
    std::string().swap(buffer_);
  }
}

/// Allocates disk space in advance. A failure does not matter: the write then tells.
void JournalFile::allocate(File& file, std::uint64_t size) {
  if (size <= file.allocated) {
    return;
  }
  const std::uint64_t from = std::max(file.allocated, file.end);
  const std::uint64_t to = size + kAllocatedAtOnce;
  if (::fallocate(file.fd.get(), 0, static_cast<off_t>(from), static_cast<off_t>(to - from)) == 0) {
    file.allocated = to;
  }
}

void JournalFile::write_at(const File& file, std::string_view bytes, std::uint64_t at) {
  while (!bytes.empty()) {
    const ssize_t count =
        ::pwrite(file.fd.get(), bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (count < 0 && errno != EINTR) {
      fail("write", file.path, errno);
    }
    const std::size_t done = count > 0 ? static_cast<std::size_t>(count) : 0;
    bytes.remove_prefix(done);
    at += done;
  }
}

void JournalFile::sync(const File& file) {
  if (::fdatasync(file.fd.get()) != 0) {
    fail("flush", file.path, errno);
  }
}

}  // namespace acc::rendezvous
