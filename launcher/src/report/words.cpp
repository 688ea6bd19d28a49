// SPDX-License-Identifier: Apache-2.0
#include "report/words.hpp"

#include "acc/base/text.hpp"

#include <boost/locale/utf.hpp>
#include <fmt/format.h>

#include <algorithm>

namespace acc::launcher::report {

std::string how_it_ended(const std::optional<supervision::ProcessEnd>& end, bool told_to_end) {
  if (!end) {
    return "could not be killed and is still there";
  }
  if (told_to_end && end->kind == supervision::ProcessEnd::Kind::exited && end->value != 0) {
    return end->describe() + " after acclaunch asked it to end";
  }
  return (told_to_end ? "ended by acclaunch, " : "") + end->describe();
}

std::string how_it_ended(const WorkerReport& worker) {
  return worker.stuck ? "stuck in uninterruptible sleep"
                      : how_it_ended(worker.end, worker.told_to_end);
}

std::string how_it_failed(const std::optional<supervision::ProcessEnd>& end, bool told_to_end) {
  if (end && end->ok()) {
    return end->describe() + " while other ranks still needed it";
  }
  return (told_to_end ? "other ranks waited for it; " : "") + how_it_ended(end, told_to_end);
}

std::string how_it_failed(const WorkerReport& worker) {
  return worker.stuck ? how_it_ended(worker) : how_it_failed(worker.end, worker.told_to_end);
}

std::string worker_line(int rank, pid_t pid, const std::string& host, const std::string& end) {
  return fmt::format("rank {} (pid {} on {}): {}", rank, pid, printable(host), end);
}

std::string failure_line(const supervision::WorkerRecord& worker, const std::string& host) {
  const bool is_there = !worker.end && !worker.stuck.empty();
  return worker_line(worker.rank, worker.pid, host,
                     is_there ? worker.stuck : how_it_failed(worker.end, worker.told_to_end));
}

std::string numbered(const std::string& noun, const std::vector<int>& numbers) {
  return noun + (numbers.size() == 1 ? " " : "s ") + number_list(numbers);
}

std::string shell_line(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) {
    line += (line.empty() ? "" : " ") + shell_quoted(word);
  }
  return line;
}

// Precision follows the magnitude: milliseconds below 1 s, whole seconds above one minute.
std::string time_span(std::chrono::microseconds time) {
  const double seconds = static_cast<double>(time.count()) / 1e6;
  if (seconds < 1) {
    return fmt::format("{:.3g} ms", seconds * 1e3);
  }
  if (seconds < 60) {
    return fmt::format("{:.4g} s", seconds);
  }
  const auto whole = static_cast<std::int64_t>(seconds);
  return whole < 3600 ? fmt::format("{} min {} s", whole / 60, whole % 60)
                      : fmt::format("{} h {} min", whole / 3600, whole / 60 % 60);
}

std::string binary_size(std::int64_t bytes) {
  const double mib = static_cast<double>(bytes) / (1 << 20);
  return mib < 1024 ? fmt::format("{:.3g} MiB", mib) : fmt::format("{:.3g} GiB", mib / 1024);
}

std::string clipped(std::string_view text, std::size_t max_bytes) {
  constexpr std::string_view kMark = "...";
  if (text.size() <= max_bytes) {
    return std::string(text);
  }
  std::size_t end = max_bytes - std::min(max_bytes, kMark.size());
  while (end > 0 && boost::locale::utf::utf_traits<char>::is_trail(text[end])) {
    --end;
  }
  return std::string(text.substr(0, end)).append(kMark.substr(0, max_bytes));
}

}  // namespace acc::launcher::report
