// SPDX-License-Identifier: Apache-2.0
#include "supervision/process_state.hpp"

#include "acc/base/text.hpp"

#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace acc::launcher::supervision {
namespace {

namespace fs = std::filesystem;

fs::path folder_of(pid_t pid, const fs::path& proc) {
  return proc / std::to_string(pid);
}

std::string in_words(char letter) {
  switch (letter) {
    case 'R': return "running";
    case 'S': return "sleeping";
    case 'D': return "in uninterruptible sleep";
    case 'T': return "stopped";
    case 't': return "stopped by a debugger";
    case 'Z': return "ended, but not yet reaped";
    case 'I': return "idle";
    default: return std::string("in state ") + letter;
  }
}

/// Returns the number of time slices that the process has run: the third number in its schedstat
/// file, after the times on and waiting for a CPU. Empty if the kernel does not provide the file.
std::string times_run(pid_t pid, const fs::path& proc) {
  std::string count;
  std::istringstream(first_line(folder_of(pid, proc) / "schedstat")) >> count >> count >> count;
  return count;
}

}  // namespace

std::optional<ProcessState> process_state(pid_t pid, const fs::path& proc) {
  // "17 (a name) S 4 …". The name itself may contain parentheses and spaces.
  const std::string stat = first_line(folder_of(pid, proc) / "stat");
  const auto begin = stat.find('(');
  const auto end = stat.rfind(')');
  if (begin == std::string::npos || end == std::string::npos || end < begin) {
    return std::nullopt;
  }
  ProcessState state;
  state.name = stat.substr(begin + 1, end - begin - 1);
  std::istringstream(stat.substr(end + 1)) >> state.letter >> state.parent;
  return state;
}

std::optional<ProcessUsage> process_usage(pid_t pid, const fs::path& proc) {
  const std::string stat = first_line(folder_of(pid, proc) / "stat");
  const auto end = stat.rfind(')');
  if (end == std::string::npos) {
    return std::nullopt;
  }
  std::istringstream fields(stat.substr(end + 1));  // begins with field 3
  const std::vector<std::string> words{std::istream_iterator<std::string>(fields), {}};
  if (words.size() < 22) {
    return std::nullopt;
  }
  static const long per_second = ::sysconf(_SC_CLK_TCK);
  const auto in_milliseconds = [&](const std::string& ticks) {
    return std::chrono::milliseconds(parse_integer(ticks).value_or(0) * 1000 / per_second);
  };
  return ProcessUsage{in_milliseconds(words[11]) + in_milliseconds(words[12]),
                      in_milliseconds(words[19]),
                      parse_integer(words[21]).value_or(0) * ::sysconf(_SC_PAGESIZE)};
}

std::string describe_state(pid_t pid, const fs::path& proc) {
  const std::optional<ProcessState> state = process_state(pid, proc);
  if (!state) {
    return {};
  }
  const std::string where = first_line(folder_of(pid, proc) / "wchan");
  return in_words(state->letter) + (where.empty() || where == "0" ? "" : " (" + where + ")");
}

// The lines "SigCgt: 0000000180004002" are bit masks in which bit n - 1 stands for signal n.
bool has_default_action(pid_t pid, int signal, const fs::path& proc) {
  std::ifstream status(folder_of(pid, proc) / "status");
  int masks = 0;
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("SigBlk:") || line.starts_with("SigIgn:") || line.starts_with("SigCgt:")) {
      const auto bits = std::strtoull(line.c_str() + std::strlen("SigBlk:"), nullptr, 16);
      if ((bits >> (signal - 1) & 1) != 0) {
        return false;
      }
      ++masks;
    }
  }
  return masks == 3;
}

bool StuckWatch::is_stuck(pid_t pid, Clock::time_point now) {
  const std::optional<ProcessState> state = process_state(pid, proc_);
  if (!state || state->letter != 'D') {
    asleep_.erase(pid);
    return false;
  }
  Sleep sleep{now, times_run(pid, proc_)};
  Sleep& known = asleep_.try_emplace(pid, sleep).first->second;
  if (known.times_run != sleep.times_run) {  // it ran between two short sleeps
    known = std::move(sleep);
  }
  return now - known.since >= limit_;
}

std::string first_line(const std::filesystem::path& file) {
  std::string line;
  std::getline(std::ifstream(file), line);
  return line;
}

std::optional<std::int64_t> number_in(const std::filesystem::path& file, const std::string& word) {
  std::ifstream words(file);
  if (!word.empty()) {
    for (std::string name; words >> name && name != word;) {
    }
  }
  std::int64_t number = 0;
  return words >> number ? std::optional(number) : std::nullopt;
}

std::optional<std::int64_t> pid_namespace(const std::filesystem::path& root) {
  std::error_code unknown;
  const std::string link = std::filesystem::read_symlink(root / "proc/self/ns/pid", unknown);
  std::int64_t number = 0;  // "pid:[4026531836]"
  return std::sscanf(link.c_str(), "pid:[%" SCNd64 "]", &number) == 1 ? std::optional(number)
                                                                      : std::nullopt;
}

}  // namespace acc::launcher::supervision
