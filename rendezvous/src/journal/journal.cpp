// SPDX-License-Identifier: Apache-2.0
#include "journal/journal.hpp"

#include "acc/base/atomic_file.hpp"
#include "acc/base/error.hpp"
#include "acc/base/log.hpp"

#include <boost/crc.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
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
//   group   "ACCG", u32 checksum of salt, size and entries, u64 size, entries
//   entry   u8 kind, then twice: length as a varint (7 bits a byte, lowest first), bytes
// The checksum is the CRC-32 of zip. The salt is random: bytes that a client has stored cannot
// look like a group. Zeros follow the last group, because disk space is allocated in advance.
namespace acc::rendezvous {
namespace {

static_assert(std::endian::native == std::endian::little, "the log is little-endian");

constexpr std::string_view kMagic = "acc-rdzv";
constexpr std::string_view kGroup = "ACCG";
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kHeaderBytes = 24;
constexpr std::size_t kGroupBytes = 16;
// A commit in allocated space changes no metadata of the file, which makes its flush faster.
constexpr std::uint64_t kAllocatedAtOnce = std::uint64_t{4} << 20;
// The log is rewritten when it is twice as long as after the last time, but not below this size.
constexpr std::uint64_t kShortLog = std::uint64_t{16} << 20;
// A larger group is written before the next entry is added.
constexpr std::size_t kLargeGroup = std::size_t{1} << 20;

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

template <typename... Parts>
std::uint32_t checksum(std::uint64_t salt, const Parts&... parts) {
  boost::crc_32_type crc;
  crc.process_bytes(&salt, sizeof salt);
  (crc.process_bytes(parts.data(), parts.size()), ...);
  return crc.checksum();
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

void put_bytes(std::string& out, std::string_view bytes) {
  std::size_t size = bytes.size();
  for (; size >= 0x80; size >>= 7) {
    out.push_back(static_cast<char>(size | 0x80));
  }
  out.push_back(static_cast<char>(size));
  out.append(bytes);
}

/// Takes a length and so many bytes; nothing if `bytes` has fewer.
std::optional<std::string_view> take_bytes(std::string_view& bytes) {
  std::uint64_t size = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    if (bytes.empty()) {
      return std::nullopt;
    }
    const auto byte = static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
    size |= std::uint64_t{byte & 0x7FU} << shift;
    if (byte < 0x80) {
      break;
    }
  }
  if (size > bytes.size()) {
    return std::nullopt;
  }
  const std::string_view taken = bytes.substr(0, size);
  bytes.remove_prefix(size);
  return taken;
}

/// Reads a file in order.
class FileReader {
 public:
  explicit FileReader(int fd) : fd_(fd) {}

  /// Reads up to `size` bytes at `at`; fewer at the end of the file. Returns false with errno.
  bool read(std::uint64_t at, std::size_t size, std::string& out) const {
    out.resize(size);
    std::size_t done = 0;
    while (done < size) {
      const ssize_t count =
          ::pread(fd_, out.data() + done, size - done, static_cast<off_t>(at + done));
      if (count < 0 && errno != EINTR) {
        return false;
      }
      if (count == 0) {
        break;
      }
      done += count > 0 ? static_cast<std::size_t>(count) : 0;
    }
    out.resize(done);
    return true;
  }

 private:
  int fd_;
};

/// Size of the group at the beginning of `bytes`, if they begin with a whole group.
std::optional<std::size_t> group_at(std::string_view bytes, std::uint64_t salt) {
  if (bytes.size() < kGroupBytes || !bytes.starts_with(kGroup)) {
    return std::nullopt;
  }
  const auto size = get<std::uint64_t>(bytes, 8);
  if (size > bytes.size() - kGroupBytes ||
      checksum(salt, bytes.substr(8, 8), bytes.substr(kGroupBytes, size)) !=
          get<std::uint32_t>(bytes, 4)) {
    return std::nullopt;
  }
  return kGroupBytes + size;
}

}  // namespace

Journal::Journal(std::filesystem::path folder, bool syncs, const Receive& replay)
    : folder_(std::move(folder)), file_{.path = folder_ / "log"}, syncs_(syncs) {
  lock();
  file_.fd.reset(::open(file_.path.c_str(), O_RDWR | O_CLOEXEC));
  if (file_.fd) {
    read(replay);
  } else if (errno == ENOENT) {
    rewrite([](const Receive&) {});
  } else {
    fail("open", file_.path, errno);
  }
}

void Journal::fail(std::string_view action, const std::filesystem::path& path, int error) {
  is_broken_ = true;
  const bool is_disk = error == ENOSPC || error == EDQUOT || error == EFBIG || error == EIO;
  throw Error(is_disk ? Errc::process : Errc::config, file_error(action, path, error).what());
}

/// Takes the folder for this process. The kernel releases it when the process ends.
void Journal::lock() {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error) {
    fail("create", folder_, error.value());
  }
  lock_.reset(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock_) {
    fail("open", folder_, errno);
  }
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    throw Error(
        Errc::config,
        fmt::format("another acc-rendezvous uses {}: choose another state_dir", folder_.string()));
  }
}

void Journal::read(const Receive& replay) {
  struct stat status {};
  ::fstat(file_.fd.get(), &status);
  const auto file_size = static_cast<std::uint64_t>(status.st_size);
  const FileReader file(file_.fd.get());
  const auto damaged = [&](std::uint64_t at, const std::string& what) {
    return Error(Errc::config,
                 fmt::format("{} is damaged at byte {}: {}. Restore the file, or move it away to "
                             "begin without keys and jobs",
                             file_.path.string(), at, what));
  };
  std::string bytes;
  if (!file.read(0, kHeaderBytes, bytes)) {
    fail("read", file_.path, errno);
  }
  if (bytes.size() < kHeaderBytes || !bytes.starts_with(kMagic)) {
    throw Error(Errc::config, file_.path.string() +
                                  " is not a log of acc-rendezvous: choose "
                                  "another state_dir");
  }
  file_.salt = get<std::uint64_t>(bytes, 16);
  if (get<std::uint32_t>(bytes, 12) != checksum(file_.salt, std::string_view(bytes).substr(8, 4))) {
    throw damaged(0, "the checksum of the header is wrong");
  }
  if (const auto version = get<std::uint32_t>(bytes, 8); version != kVersion) {
    throw Error(Errc::config,
                fmt::format("{} has version {}, expected {}: it is the log of {} acc-rendezvous",
                            file_.path.string(), version, kVersion,
                            version > kVersion ? "a newer" : "another"));
  }
  std::uint64_t at = kHeaderBytes;
  std::string group;
  while (true) {
    if (!file.read(at, kGroupBytes, group)) {
      fail("read", file_.path, errno);
    }
    const bool is_group = group.size() == kGroupBytes && group.starts_with(kGroup);
    const std::uint64_t size = is_group ? get<std::uint64_t>(group, 8) : 0;
    if (!is_group || size > file_size - at - kGroupBytes) {
      break;
    }
    if (!file.read(at, kGroupBytes + size, group)) {
      fail("read", file_.path, errno);
    }
    if (!group_at(group, file_.salt)) {
      break;
    }
    std::string_view entries = std::string_view(group).substr(kGroupBytes);
    while (!entries.empty()) {
      const auto kind = static_cast<std::uint8_t>(entries.front());
      entries.remove_prefix(1);
      const auto first = take_bytes(entries);
      const auto second = first ? take_bytes(entries) : std::nullopt;
      if (!second) {
        throw damaged(at, "an entry is longer than its group");
      }
      replay({kind, *first, *second});
    }
    at += kGroupBytes + size;
  }
  // The group that was being written may follow, or nothing. A whole group behind it would
  // prove that bytes in the middle have changed: its predecessor was complete when it was begun.
  std::string rest;
  if (!file.read(at, file_size - std::min(at, file_size), rest)) {
    fail("read", file_.path, errno);
  }
  for (std::size_t next = rest.find(kGroup); next != std::string::npos;
       next = rest.find(kGroup, next + 1)) {
    if (group_at(std::string_view(rest).substr(next), file_.salt)) {
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
  rewritten_bytes_ = at;
  if (::ftruncate(file_.fd.get(), static_cast<off_t>(at)) != 0) {
    fail("truncate", file_.path, errno);
  }
  sync(file_);
}

void Journal::add(const Entry& entry) {
  if (pending_.size() > kLargeGroup) {
    commit();
  }
  if (pending_.empty()) {
    pending_.assign(kGroupBytes, '\0');
  }
  pending_.push_back(static_cast<char>(entry.kind));
  put_bytes(pending_, entry.first);
  put_bytes(pending_, entry.second);
}

void Journal::commit() {
  if (pending_.empty() || is_broken_) {
    return;
  }
  write_group(file_);
  if (syncs_) {
    sync(file_);
  }
}

bool Journal::is_long() const noexcept {
  return file_.end > std::max(kShortLog, 2 * rewritten_bytes_);
}

void Journal::rewrite(const std::function<void(const Receive& add)>& state) {
  if (is_broken_) {
    return;
  }
  File next{.path = folder_ / "log.new", .salt = random_salt()};
  next.fd.reset(::open(next.path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!next.fd) {
    fail("create", next.path, errno);
  }
  write_at(next, header(next.salt), 0);
  next.end = kHeaderBytes;
  pending_.clear();
  state([&](const Entry& entry) {
    if (pending_.size() > kLargeGroup) {
      write_group(next);
    }
    add(entry);
  });
  write_group(next);
  if (::fsync(next.fd.get()) != 0) {
    fail("flush", next.path, errno);
  }
  if (::rename(next.path.c_str(), file_.path.c_str()) != 0) {
    fail("rename", next.path, errno);
  }
  if (::fsync(lock_.get()) != 0) {  // the new name is on the disk
    fail("flush", folder_, errno);
  }
  next.path = file_.path;
  file_ = std::move(next);
  rewritten_bytes_ = file_.end;
}

/// Writes the pending entries as a group.
void Journal::write_group(File& file) {
  if (pending_.empty()) {
    return;
  }
  const std::uint64_t size = pending_.size() - kGroupBytes;
  kGroup.copy(pending_.data(), kGroup.size());
  put(pending_.data() + 8, size);
  const std::string_view bytes = pending_;
  put(pending_.data() + 4, checksum(file.salt, bytes.substr(8, 8), bytes.substr(kGroupBytes)));
  allocate(file, file.end + bytes.size());
  write_at(file, bytes, file.end);
  file.end += bytes.size();
  pending_.clear();
}

/// Allocates disk space in advance. A failure does not matter: the write then tells.
void Journal::allocate(File& file, std::uint64_t size) {
  if (size <= file.allocated) {
    return;
  }
  const std::uint64_t from = std::max(file.allocated, file.end);
  const std::uint64_t to = size + kAllocatedAtOnce;
  if (::fallocate(file.fd.get(), 0, static_cast<off_t>(from), static_cast<off_t>(to - from)) == 0) {
    file.allocated = to;
  }
}

void Journal::write_at(const File& file, std::string_view bytes, std::uint64_t at) {
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

void Journal::sync(const File& file) {
  if (::fdatasync(file.fd.get()) != 0) {
    fail("flush", file.path, errno);
  }
}

}  // namespace acc::rendezvous
