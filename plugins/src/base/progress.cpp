// SPDX-License-Identifier: Apache-2.0
#include "acc/base/progress.hpp"

#include "acc/base/text.hpp"
#include "acc/base/variables.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>

namespace acc {
namespace {

using Seconds = std::chrono::duration<double>;

/// Formats a remaining time: "7 s", "3:07 min", "2:03 h".
std::string remaining_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(seconds + 0.5);
  if (whole < 60) {
    return fmt::format("{} s", whole);
  }
  return whole < 3600 ? fmt::format("{}:{:02} min", whole / 60, whole % 60)
                      : fmt::format("{}:{:02} h", whole / 3600, whole / 60 % 60);
}

/// True if stderr is a terminal that understands the escape sequences for redrawing a line.
bool can_redraw() {
  return ::isatty(STDERR_FILENO) == 1 && has_cursor() && log_format() == LogFormat::text;
}

void draw(const std::string& line) {
  const std::string text = "\r\x1b[K" + line;  // start of the line; erase it (ECMA-48 EL)
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace

std::string in_decimal_units(std::uint64_t nbytes) {
  static constexpr std::array kNames = {"B", "KB", "MB", "GB", "TB", "PB", "EB"};
  auto value = static_cast<double>(nbytes);
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < kNames.size()) {
    value /= 1000.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", nbytes) : fmt::format("{:.3g} {}", value, kNames[unit]);
}

std::string ProgressLines::next(Time elapsed, std::uint64_t done) {
  has_printed_ = true;
  next_ = elapsed + (overwrites_ ? Time(std::chrono::milliseconds(200)) : std::chrono::seconds(10));
  const double seconds = std::max(1e-3, Seconds(elapsed).count());
  const double rate = static_cast<double>(done) / seconds;
  const std::string speed = in_decimal_units(static_cast<std::uint64_t>(rate)) + "/s";
  if (total_ == 0) {
    return fmt::format("{}: {}, {}", what_, in_decimal_units(done), speed);
  }
  done = std::min(done, total_);
  std::string line = fmt::format(
      "{}: {} of {}, {} %, {}", what_, in_decimal_units(done), in_decimal_units(total_),
      static_cast<int>(100.0 * static_cast<double>(done) / static_cast<double>(total_)), speed);
  if (done == total_) {
    return line + ", flushing to the disk";
  }
  return done == 0 ? line
                   : line + fmt::format(", {} left",
                                        remaining_text(static_cast<double>(total_ - done) / rate));
}

std::string ProgressLines::last(Time elapsed, std::uint64_t done) const {
  if (!has_printed_ || done < total_) {
    return {};
  }
  const double seconds = std::max(1e-3, Seconds(elapsed).count());
  return fmt::format(
      "{}: {} in {:.1f} s, {}/s", what_, in_decimal_units(done), seconds,
      in_decimal_units(static_cast<std::uint64_t>(static_cast<double>(done) / seconds)));
}

ProgressMeter::ProgressMeter(ShowProgress shows, Component component, std::string what,
                             std::uint64_t total_nbytes)
    : shows_(shows == ShowProgress::yes && logger(component).should_log(LogLevel::info)),
      overwrites_(shows_ && can_redraw()),
      component_(component),
      lines_(printable(what), total_nbytes, overwrites_) {}

ProgressMeter::~ProgressMeter() {
  if (!lines_.has_printed()) {
    return;
  }
  if (overwrites_) {
    draw("");
  } else if (const std::string line = lines_.last(elapsed(), done_); !line.empty()) {
    notice(component_, LogLevel::info, "acclaunch: ", line);
  }
}

void ProgressMeter::add(std::uint64_t nbytes) {
  done_ += nbytes;
  if (!shows_) {
    return;
  }
  const std::unique_lock lock(printing_, std::try_to_lock);
  if (!lock || !lines_.is_due(elapsed())) {
    return;
  }
  const std::string line = lines_.next(elapsed(), done_);
  if (overwrites_) {
    draw(line);
  } else {
    notice(component_, LogLevel::info, "acclaunch: ", line);
  }
}

}  // namespace acc
