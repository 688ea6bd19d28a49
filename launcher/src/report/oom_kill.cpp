// SPDX-License-Identifier: Apache-2.0
#include "report/kernel_facts.hpp"
#include "report/words.hpp"
#include "supervision/cgroup.hpp"
#include "supervision/process_state.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <initializer_list>
#include <string_view>
#include <utility>

namespace acc::launcher::report {
namespace {

namespace fs = std::filesystem;

constexpr const char* kKilled = "killed by the kernel: out of memory (OOM)";
constexpr std::size_t kMaxLog = std::size_t{4} << 20;

/// Opens the kernel log at its end. Its pids are those of the initial pid namespace; in any other
/// namespace they do not match ours, and the log is not opened.
UniqueFd open_kernel_log(const fs::path& root) {
  if (supervision::pid_namespace(root) != supervision::kFirstPidNamespace) {
    return {};
  }
  UniqueFd file(::open((root / "dev/kmsg").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (file && ::lseek(file.get(), 0, SEEK_END) < 0) {
    file.reset();
  }
  return file;
}

/// Returns the text after `name`, up to any of the characters in `ends`.
std::string_view after(std::string_view text, std::string_view name, std::string_view ends) {
  const std::size_t at = text.find(name);
  if (at == std::string_view::npos) {
    return {};
  }
  text.remove_prefix(at + name.size());
  return text.substr(0, text.find_first_of(ends));
}

/// Returns the bytes of a field such as "anon-rss:65280kB".
std::int64_t field(std::string_view line, std::string_view name) {
  const std::string digits(after(line, name, "k "));
  return std::strtoll(digits.c_str(), nullptr, 10) * 1024;
}

/// Returns the last line that contains `mark`, or an empty one.
std::string_view last_line_with(std::string_view text, std::string_view mark) {
  const std::size_t at = text.rfind(mark);
  if (at == std::string_view::npos) {
    return {};
  }
  text.remove_prefix(text.rfind('\n', at) + 1);
  return text.substr(0, text.find('\n'));
}

constexpr const char* kController = "memory";
// Version 1 writes a number close to 2^63 if there is no limit.
constexpr std::int64_t kNoLimit = std::int64_t{1} << 62;

/// Returns the folder of the group below `root`, using the mount table below `root`.
fs::path folder_of(const fs::path& root, const std::string& name, const std::string& controller) {
  const fs::path folder =
      supervision::cgroup_folder(root / "proc/self/mountinfo", name, controller);
  return folder.empty() ? fs::path() : root / folder.relative_path();
}

/// Returns the number after `word` in one of `files`, of the group in `folder` or of the nearest
/// group above it that has the number. A folder without cgroup.procs is not a group, which ends the
/// search.
std::optional<std::int64_t> nearest(fs::path folder, std::initializer_list<const char*> files,
                                    const std::string& word) {
  std::error_code ignored;
  for (; fs::exists(folder / "cgroup.procs", ignored); folder = folder.parent_path()) {
    for (const char* file : files) {
      const auto number = supervision::number_in(folder / file, word);
      if (number && *number < kNoLimit) {
        return number;
      }
    }
  }
  return std::nullopt;
}

}  // namespace

MemoryCgroup::MemoryCgroup(const fs::path& root)
    : folder_(folder_of(root, supervision::cgroup_name(root / "proc/self/cgroup"), "")) {
  if (!oom_kills()) {  // the memory controller is not in the version 2 hierarchy
    folder_ = folder_of(root, supervision::cgroup_name(root / "proc/self/cgroup", kController),
                        kController);
  }
}

MemoryCgroup::MemoryCgroup(const fs::path& root, const std::string& name)
    : folder_(folder_of(root, name, "")) {
  if (!oom_kills()) {
    folder_ = folder_of(root, name, kController);
  }
}

std::optional<std::int64_t> MemoryCgroup::oom_kills() const {
  return nearest(folder_, {"memory.events", "memory.oom_control"}, "oom_kill");
}

std::optional<std::int64_t> MemoryCgroup::limit() const {
  return nearest(folder_, {"memory.max", "memory.limit_in_bytes"}, "");
}

OomKills::OomKills(fs::path root)
    : root_(std::move(root)),
      log_file_(open_kernel_log(root_)),
      cgroup_(root_),
      cgroup_kills_before_(cgroup_.oom_kills()),
      machine_kills_before_(machine_kills()) {}

std::optional<std::int64_t> OomKills::machine_kills() const {
  return supervision::number_in(root_ / "proc/vmstat", "oom_kill");
}

const std::string& OomKills::log() const {
  // Each read() returns one record, and fails with EINVAL if the buffer is too small for it. The
  // kernel limits a record to 1 KiB of text (PRINTK_MESSAGE_MAX is 2 KiB).
  std::array<char, 8192> record{};
  while (log_file_ && log_.size() < kMaxLog) {
    const ssize_t count = ::read(log_file_.get(), record.data(), record.size());
    if (count > 0) {
      log_.append(record.data(), static_cast<std::size_t>(count));
    } else if (count == 0 || (errno != EPIPE && errno != EINTR)) {  // EPIPE: records were lost
      break;
    }
  }
  return log_;
}

/// Returns the limit that was reached, as the end of the message. `kill`, `reason`: the two lines
/// of the kernel log shown below. The kernel limits the rate of its log, so that `reason` may be
/// missing.
std::string OomKills::limit_of(std::string_view kill, std::string_view reason) const {
  if (kill.find("Memory cgroup out of memory") == std::string_view::npos) {
    const auto total = supervision::number_in(root_ / "proc/meminfo", "MemTotal:");
    return total ? ", the machine has " + binary_size(*total * 1024) : "";
  }
  const std::string cgroup(after(reason, "oom_memcg=", ","));
  const auto limit = MemoryCgroup(root_, cgroup).limit();
  return limit ? fmt::format(", the limit of cgroup {} is {}", cgroup, binary_size(*limit))
               : ", the memory limit of its cgroup";
}

// The kernel logs two lines per kill (mm/oom_kill.c):
//
// oom-kill:constraint=CONSTRAINT_MEMCG,...,oom_memcg=/job,task_memcg=/job,task=python3,pid=4711,uid=0
// Memory cgroup out of memory: Killed process 4711 (python3) total-vm:..kB, anon-rss:65280kB, ...
std::string OomKills::logged_kill(pid_t pid) const {
  const std::string_view kill = last_line_with(log(), fmt::format("Killed process {} (", pid));
  if (kill.empty()) {
    return {};
  }
  const std::string_view reason = last_line_with(log(), fmt::format(",pid={},", pid));
  const std::int64_t resident = field(kill, "anon-rss:") + field(kill, "shmem-rss:");
  return fmt::format("{}; {} resident{}", kKilled, binary_size(resident), limit_of(kill, reason));
}

std::string OomKills::counted_kill(std::int64_t peak_memory) const {
  const auto growth = [](std::optional<std::int64_t> now, std::optional<std::int64_t> before) {
    return now && before ? *now - *before : 0;
  };
  const std::int64_t in_cgroup = growth(cgroup_.oom_kills(), cgroup_kills_before_);
  // If the log is readable and does not name the process, the machine's counter grew because of
  // another process.
  const std::int64_t in_machine = log_file_ ? 0 : growth(machine_kills(), machine_kills_before_);
  if (in_cgroup <= 0 && in_machine <= 0) {
    return {};
  }
  const auto limit = cgroup_.limit();
  return fmt::format(
      "{} {}; {} {} OOM kill{} since the start{}{}", in_cgroup > 0 ? "probably" : "perhaps",
      kKilled, in_cgroup > 0 ? "its cgroup counts" : "the machine counts",
      in_cgroup > 0 ? in_cgroup : in_machine,
      (in_cgroup > 0 ? in_cgroup : in_machine) == 1 ? "" : "s",
      peak_memory > 0 ? "; its peak memory was " + binary_size(peak_memory) : "",
      in_cgroup > 0 && limit ? "; the limit of its cgroup is " + binary_size(*limit) : "");
}

std::string OomKills::cause(pid_t pid, std::int64_t peak_memory) const {
  std::string kill = logged_kill(pid);
  if (kill.empty()) {
    kill = counted_kill(peak_memory);
  }
  if (kill.empty() && (cgroup_kills_before_ || machine_kills_before_)) {
    return "SIGKILL came neither from acclaunch nor from the kernel's out-of-memory (OOM) killer";
  }
  return kill;
}

}  // namespace acc::launcher::report
