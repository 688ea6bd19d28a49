// SPDX-License-Identifier: Apache-2.0
#include "acc/base/trace_file.hpp"

#include "acc/base/error.hpp"
#include "acc/base/unique_fd.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <string_view>

namespace acc {
namespace {

constexpr std::string_view kOpen = "[\n";
constexpr std::string_view kClose = "\n]\n";

Error cannot_write(const std::string& path) {
  return {Errc::config, fmt::format("ACC_TRACE: cannot write {}: {}", path, std::strerror(errno))};
}

UniqueFd open_trace(const std::string& path, int flags) {
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0644));
  if (!file) {
    throw cannot_write(path);
  }
  return file;
}

void write_at(const UniqueFd& file, off_t offset, const std::string& path,
              const std::string& text) {
  if (::pwrite(file.get(), text.data(), text.size(), offset) != static_cast<ssize_t>(text.size())) {
    throw cannot_write(path);
  }
}

template <typename Clock>
double microseconds_now() {
  return std::chrono::duration<double, std::micro>(Clock::now().time_since_epoch()).count();
}

}  // namespace

void create_trace_file(const std::string& path) {
  write_at(open_trace(path, O_TRUNC), 0, path, std::string(kOpen).append(kClose));
}

// Overwrites the closing bracket and writes it again at the end. The lock serializes the processes
// that share the file.
void append_trace_events(const std::string& path, std::string lines) {
  const UniqueFd file = open_trace(path, 0);
  ::flock(file.get(), LOCK_EX);
  const off_t end = ::lseek(file.get(), 0, SEEK_END);
  lines.replace(lines.size() - 2, 2, kClose);
  constexpr auto kEmpty = static_cast<off_t>(kOpen.size() + kClose.size());
  if (end <= kEmpty) {
    write_at(file, 0, path, std::string(kOpen).append(lines));
  } else {
    write_at(file, end - static_cast<off_t>(kClose.size()), path, ",\n" + lines);
  }
}

std::string trace_clock_event(int process) {
  return fmt::format(
      "{{\"name\":\"acc_clock\",\"ph\":\"M\",\"pid\":{},\"args\":{{\"steady_us\":{:.3f},"
      "\"unix_us\":{:.3f}}}}},\n",
      process, microseconds_now<std::chrono::steady_clock>(),
      microseconds_now<std::chrono::system_clock>());
}

}  // namespace acc
