// SPDX-License-Identifier: Apache-2.0
#include "report/kernel_facts.hpp"
#include "supervision/process_state.hpp"

#include <glob.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace acc::launcher::report {
namespace {

namespace fs = std::filesystem;

constexpr std::array kDumpingSignals = {SIGABRT, SIGBUS, SIGFPE,  SIGILL,  SIGQUIT,
                                        SIGSEGV, SIGSYS, SIGTRAP, SIGXCPU, SIGXFSZ};  // signal(7)

/// True if core dumps are disabled: workers inherit the launcher's limit.
bool is_limited_to_nothing() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_CORE, &limit) == 0 && limit.rlim_cur == 0;
}

std::vector<fs::path> matches(const std::string& pattern) {
  glob_t found{};
  std::vector<fs::path> files;
  if (::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found) == 0) {
    files.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  ::globfree(&found);
  return files;
}

/// Returns the newest of the files, if it is not older than `since`.
std::optional<fs::path> newest(const std::vector<fs::path>& files, fs::file_time_type since) {
  std::optional<fs::path> best;
  for (const fs::path& file : files) {
    std::error_code gone;
    const auto written = fs::last_write_time(file, gone);
    if (!gone && written >= since) {
      since = written;
      best = file;
    }
  }
  return best;
}

/// Describes a dump that the kernel piped to a program. `pattern` names the program:
/// "|/usr/lib/systemd/systemd-coredump %P %u ...".
std::string handed_over(const std::string& pattern, pid_t pid) {
  const std::string program = pattern.substr(1, pattern.find(' ') - 1);
  const std::string text = "core dump passed to " + program;
  return program.ends_with("/systemd-coredump")
             ? text + "; see coredumpctl info " + std::to_string(pid)
             : text;
}

/// Escapes `text` so that glob(7) takes it literally.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    out += std::string_view("*?[\\").find(c) == std::string_view::npos ? "" : "\\";
    out += c;
  }
  return out;
}

/// Makes the pattern `glob` absolute, starting at `folder` or at the current directory.
std::string below(const fs::path& folder, const std::string& glob) {
  const fs::path start = folder.empty() ? fs::current_path() : fs::absolute(folder);
  return glob.starts_with('/') ? glob : escaped(start.string()) + "/" + glob;
}

}  // namespace

// core(5): "%p" is the pid, "%%" a percent sign, "%" at the end is dropped. If the pattern has no
// "%p" and kernel.core_uses_pid is 1, the kernel appends "." and the pid.
std::string core_file_glob(const std::string& pattern, pid_t pid, bool adds_pid) {
  std::string name;
  bool has_pid = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%') {
      name += escaped(pattern.substr(i, 1));
      continue;
    }
    const char what = ++i < pattern.size() ? pattern[i] : '\0';
    has_pid = has_pid || what == 'p';
    switch (what) {
      case '\0': break;
      case '%': name += '%'; break;
      case 'p': name += std::to_string(pid); break;
      default: name += '*';
    }
  }
  return adds_pid && !has_pid ? name + "." + std::to_string(pid) : name;
}

CoreDumps::CoreDumps(fs::path root)
    : root_(std::move(root)),
      // file systems round modification times, at worst to 2 seconds
      made_at_(fs::file_time_type::clock::now() - std::chrono::seconds(2)) {}

std::string CoreDumps::cause(const supervision::WorkerRecord& worker,
                             const fs::path& folder) const {
  if (!worker.end || worker.end->kind != supervision::ProcessEnd::Kind::killed ||
      std::ranges::count(kDumpingSignals, worker.end->value) == 0) {
    return {};
  }
  const std::string pattern = supervision::first_line(root_ / "proc/sys/kernel/core_pattern");
  const bool adds_pid = supervision::first_line(root_ / "proc/sys/kernel/core_uses_pid") == "1";
  if (!worker.end->core_dumped) {
    if (is_limited_to_nothing()) {
      return "no core dump: the limit on core files is 0 (raise it by ulimit -c unlimited)";
    }
    return "no core dump, although the limit (ulimit -c) allows one; kernel.core_pattern is \"" +
           pattern + "\"";
  }
  if (pattern.starts_with('|')) {
    return handed_over(pattern, worker.pid);
  }
  const std::string glob = below(folder, core_file_glob(pattern, worker.pid, adds_pid));
  const std::optional<fs::path> file = newest(matches(glob), made_at_);
  return file ? "core dump in " + file->string()
              : "core dump written, but not found; kernel.core_pattern is \"" + pattern + "\"";
}

}  // namespace acc::launcher::report
