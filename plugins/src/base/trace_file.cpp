// SPDX-License-Identifier: Apache-2.0
#include "acc/base/trace_file.hpp"

#include "acc/base/atomic_file.hpp"
#include "acc/base/error.hpp"
#include "acc/base/file_lock.hpp"
#include "acc/base/unique_fd.hpp"
#include "acc/base/written_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <string>
#include <string_view>

namespace acc {
namespace {

constexpr std::string_view kOpen = "[\n";
constexpr std::string_view kClose = "\n]\n";
/// A process holds the lock while it writes the events of one step. A debugger may stop it then.
constexpr std::chrono::seconds kLockLimit{60};

std::string lock_of(const std::string& path) {
  return path + ".lock";
}

/// Calls a function, and names the setting in its errors. An error that does not lie in the path is
/// the disk's.
template <typename Write>
void for_trace(Write write) {
  errno = 0;
  try {
    write();
  } catch (const Error& error) {
    const int reason = errno;
    const std::string message = std::string("ACC_TRACE: ") + error.what();
    switch (reason) {
      case 0:  // something else than a file
      case ENOENT:
      case ENOTDIR:
      case EISDIR:
      case EACCES:
      case EPERM:
      case ELOOP:
      case ENAMETOOLONG:
      case ENXIO: throw Error(error.code(), message);
      default: throw TraceLost(error.code(), message);
    }
  }
}

/// Writes all of the text. Returns 0 or the errno: a disk that fills up takes the first part, and
/// gives the reason when the rest is written.
int write_at(const UniqueFd& file, off_t offset, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::pwrite(file.get(), text.data(), text.size(), offset);
    if (count < 0 && errno != EINTR) {
      return errno;
    }
    const std::size_t done = count > 0 ? static_cast<std::size_t>(count) : 0;
    text.remove_prefix(done);
    offset += static_cast<off_t>(done);
  }
  return 0;
}

[[noreturn]] void cannot_write(const std::string& path, int error) {
  errno = error;
  throw file_error("write", path, error);
}

void write_or_throw(const UniqueFd& file, const std::string& path, std::string_view text) {
  if (const int error = write_at(file, 0, text); error != 0) {
    static_cast<void>(::ftruncate(file.get(), 0));  // an empty file gets its events later
    cannot_write(path, error);
  }
}

template <typename Clock>
double microseconds_now() {
  return std::chrono::duration<double, std::micro>(Clock::now().time_since_epoch()).count();
}

}  // namespace

void create_trace_file(const std::string& path) {
  for_trace([&] {
    write_or_throw(open_file(path, O_WRONLY | O_TRUNC), path, std::string(kOpen).append(kClose));
  });
}

// Overwrites the closing bracket and writes it again at the end. The lock serializes the processes
// that share the file. Everybody may read the trace, and whoever can open a file can lock it, so
// that the lock is that of another file.
void append_trace_events(const std::string& path, std::string lines) {
  lines.replace(lines.size() - 2, 2, kClose);
  constexpr auto kEmpty = static_cast<off_t>(kOpen.size() + kClose.size());
  for_trace([&] {
    const UniqueFd file = open_file(path, O_WRONLY);
    const FileLock lock(lock_of(path), kLockLimit);
    const off_t end = ::lseek(file.get(), 0, SEEK_END);
    if (end <= kEmpty) {
      return write_or_throw(file, path, std::string(kOpen).append(lines));
    }
    // What needs new space is written first, so that the events of earlier calls stay readable.
    const std::string text = ",\n" + lines;
    const std::size_t in_place = kClose.size();
    int error = write_at(file, end, std::string_view(text).substr(in_place));
    if (error == 0) {
      error = write_at(file, end - static_cast<off_t>(in_place), text.substr(0, in_place));
    }
    if (error != 0) {
      static_cast<void>(::ftruncate(file.get(), end));
      static_cast<void>(write_at(file, end - static_cast<off_t>(in_place), kClose));
      cannot_write(path, error);
    }
  });
}

void end_trace_file(const std::string& path) noexcept {
  ::unlink(lock_of(path).c_str());
}

std::string trace_clock_event(int process) {
  return fmt::format(
      "{{\"name\":\"acc_clock\",\"ph\":\"M\",\"pid\":{},\"args\":{{\"steady_us\":{:.3f},"
      "\"unix_us\":{:.3f}}}}},\n",
      process, microseconds_now<std::chrono::steady_clock>(),
      microseconds_now<std::chrono::system_clock>());
}

}  // namespace acc
