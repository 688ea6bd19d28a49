// SPDX-License-Identifier: Apache-2.0
#include "output/status_line.hpp"

#include <array>
#include <cstdio>

namespace acc::launcher::output {
namespace {

/// Formats a duration as "3:07" or "2:03:17".
std::string clock_text(std::chrono::seconds time) {
  const long long total = time.count();
  std::array<char, 64> text{};
  if (total < 3600) {
    std::snprintf(text.data(), text.size(), "%lld:%02lld", total / 60, total % 60);
  } else {
    std::snprintf(text.data(), text.size(), "%lld:%02lld:%02lld", total / 3600, total / 60 % 60,
                  total % 60);
  }
  return text.data();
}

}  // namespace

std::string status_text(const JobStatus& status, std::chrono::steady_clock::time_point now) {
  std::string text = "acclaunch: " + std::to_string(status.running) + " of " +
                     std::to_string(status.workers) + " workers, ";
  if (status.restarts != 0) {
    text += std::to_string(status.restarts) + (status.restarts == 1 ? " restart, " : " restarts, ");
  }
  return text +
         clock_text(std::chrono::duration_cast<std::chrono::seconds>(now - status.started_at));
}

std::string StatusLine::around(std::string_view block) {
  if (block.empty() && shown_ == text_) {
    return {};
  }
  std::string bytes = shown_.empty() ? "" : "\r\033[K";  // start of the line; erase it (ECMA-48 EL)
  bytes.append(block);
  at_line_start_ = block.empty() ? at_line_start_ : block.ends_with('\n');
  shown_ = at_line_start_ ? text_ : "";
  return bytes + shown_;
}

}  // namespace acc::launcher::output
