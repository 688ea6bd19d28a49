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

/// Calls a function, and names the setting in its errors.
template <typename Write>
void for_trace(Write write) {
  try {
    write();
  } catch (const Error& error) {
    throw Error(error.code(), std::string("ACC_TRACE: ") + error.what());
  }
}

void write_at(const UniqueFd& file, off_t offset, const std::string& path,
              const std::string& text) {
  if (::pwrite(file.get(), text.data(), text.size(), offset) != static_cast<ssize_t>(text.size())) {
    throw file_error("write", path, errno);
  }
}

template <typename Clock>
double microseconds_now() {
  return std::chrono::duration<double, std::micro>(Clock::now().time_since_epoch()).count();
}

}  // namespace

void create_trace_file(const std::string& path) {
  for_trace([&] {
    write_at(open_file(path, O_WRONLY | O_TRUNC), 0, path, std::string(kOpen).append(kClose));
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
      write_at(file, 0, path, std::string(kOpen).append(lines));
    } else {
      write_at(file, end - static_cast<off_t>(kClose.size()), path, ",\n" + lines);
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
