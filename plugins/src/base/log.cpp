// SPDX-License-Identifier: Apache-2.0
#include "acc/base/log.hpp"

#include "acc/base/machine.hpp"
#include "acc/base/text.hpp"
#include "acc/base/variables.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

namespace acc {
namespace {

using spdlog::details::log_msg;
using Write = std::function<void(std::string_view)>;

spdlog::level::level_enum spdlog_level(LogLevel level) {
  return static_cast<spdlog::level::level_enum>(level);
}
static_assert(static_cast<int>(LogLevel::trace) == SPDLOG_LEVEL_TRACE &&
              static_cast<int>(LogLevel::off) == SPDLOG_LEVEL_OFF);

/// Writes to stderr with one system call if possible, so that lines of several processes are not
/// mixed. Waits if another process has made the file non-blocking. A failure has no place to be
/// reported, and is ignored.
void write_to_stderr(std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(STDERR_FILENO, text.data(), text.size());
    if (count > 0) {
      text.remove_prefix(static_cast<std::size_t>(count));
    } else if (count < 0 && errno == EAGAIN) {
      pollfd polled{STDERR_FILENO, POLLOUT, 0};
      ::poll(&polled, 1, -1);
    } else if (count == 0 || errno != EINTR) {
      return;
    }
  }
}

/// Quotes text that `printable_lines` has made valid UTF-8 without other control characters than
/// tabs and newlines (RFC 8259, section 7).
std::string json_string(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    switch (c) {
      case '"': quoted += "\\\""; break;
      case '\\': quoted += "\\\\"; break;
      case '\n': quoted += "\\n"; break;
      case '\t': quoted += "\\t"; break;
      default: quoted += c;
    }
  }
  return quoted + "\"";
}

/// Puts `head` before each line and ends each with a newline.
std::string with_head(std::string_view head, std::string_view text) {
  std::string result;
  for (const std::string_view line : entries_of(text, '\n')) {
    result.append(head).append(line).append("\n");
  }
  return result;
}

/// The only sink of the process. Formats lines and passes them to stderr or to a redirection.
class LogSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  LogSink() { set_pattern_of_text(); }

  void set_format(LogFormat format) {
    const std::lock_guard lock(mutex_);
    format_ = format;
  }
  LogFormat format() {
    const std::lock_guard lock(mutex_);
    return format_;
  }
  void set_rank(int rank, int world_size) {
    const std::lock_guard lock(mutex_);
    rank_ = rank;
    tag_ = world_size > 1 ? fmt::format(" [{}/{}]", rank, world_size) : "";
    set_pattern_of_text();
  }
  void redirect(Write write) {
    const std::lock_guard lock(mutex_);
    write_ = std::move(write);
  }

  std::string notice_text(const log_msg& message, std::string_view head) {
    const std::lock_guard lock(mutex_);
    const std::string_view text(message.payload.data(), message.payload.size());
    return format_ == LogFormat::json ? json_line(message, text) : with_head(printable(head), text);
  }
  void put(std::string_view lines) {
    const std::lock_guard lock(mutex_);
    write_(lines);
  }

 protected:
  void sink_it_(const log_msg& message) override {
    const std::string text = printable_lines({message.payload.data(), message.payload.size()});
    if (format_ == LogFormat::json) {
      write_(json_line(message, text));
      return;
    }
    log_msg shown = message;
    shown.payload = {text.data(), text.size()};
    spdlog::memory_buf_t line;
    formatter_->format(shown, line);
    write_({line.data(), line.size()});
  }
  void flush_() override {}

 private:
  void set_pattern_of_text() {
    formatter_ = std::make_unique<spdlog::pattern_formatter>("%H:%M:%S.%e %l %n" + tag_ + ": %v");
  }

  [[nodiscard]] std::string json_line(const log_msg& message, std::string_view text) const {
    const auto seconds = std::chrono::floor<std::chrono::seconds>(message.time);
    const auto millis =
        std::chrono::duration_cast<std::chrono::milliseconds>(message.time - seconds);
    const auto level = spdlog::level::to_string_view(message.level);
    return fmt::format(
        R"({{"time":"{:%Y-%m-%dT%H:%M:%S}.{:03}Z","level":"{}","logger":"{}","host":{},)"
        R"({}"message":{}}})"
        "\n",
        fmt::gmtime(spdlog::log_clock::to_time_t(seconds)), millis.count(),
        std::string_view(level.data(), level.size()),
        std::string_view(message.logger_name.data(), message.logger_name.size()),
        json_string(host_), rank_ ? fmt::format(R"("rank":{},)", *rank_) : "", json_string(text));
  }

  LogFormat format_ = LogFormat::text;
  std::optional<int> rank_;
  std::string tag_;  ///< " [rank/world_size]" in lines of a job with several workers
  const std::string host_ = host_name();
  Write write_ = write_to_stderr;
};

std::optional<LogLevel> level_named(std::string_view word) {
  const std::string name = lower(word);
  const auto names = split(kLogLevels, '|');
  if (std::ranges::find(names, name) == names.end()) {
    return std::nullopt;
  }
  return static_cast<LogLevel>(
      spdlog::level::from_str(name));  // knows these words, and takes any other for `off`
}

std::string in_words(std::string_view choices) {
  const auto words = split(choices, '|');
  return fmt::format("{} or {}", fmt::join(words.begin(), words.end() - 1, ", "), words.back());
}

/// Applies `COMPONENT:LEVEL,...`.
void read_components(const Sourced<std::string>& given,
                     std::array<LogLevel, kComponents.size()>& levels) {
  for (const std::string_view entry : split(given.value, ',')) {
    const auto colon = std::min(entry.find(':'), entry.size());
    const auto component = std::ranges::find(kComponents, trimmed(entry.substr(0, colon)));
    const auto level = level_named(trimmed(entry.substr(std::min(entry.size(), colon + 1))));
    if (component == kComponents.end() || !level) {
      throw bad_value(given, fmt::format("COMPONENT:LEVEL joined by commas, with the components {} "
                                         "and the levels {}",
                                         fmt::join(kComponents, ", "), in_words(kLogLevels)));
    }
    levels[static_cast<std::size_t>(component - kComponents.begin())] = *level;
  }
}

Sourced<std::string> variable(const char* name) {
  return {process_variable(name).value_or(""), name};
}

/// The sink and the loggers of this process. They are never destroyed, because threads and
/// destructors of static objects may log while the process ends.
class Log {
 public:
  static Log& of_process() {
    static Log* const the_log = new Log;
    return *the_log;
  }

  void set(const LogSettings& settings) {
    sink_->set_format(settings.format);
    for (std::size_t i = 0; i < loggers_.size(); ++i) {
      loggers_[i]->set_level(spdlog_level(settings.levels[i]));
    }
  }
  LogSink& sink() { return *sink_; }
  spdlog::logger& logger(Component component) {
    return *loggers_[static_cast<std::size_t>(component)];
  }

 private:
  Log() {
    for (std::size_t i = 0; i < loggers_.size(); ++i) {
      loggers_[i] = std::make_unique<spdlog::logger>(std::string(kComponents[i]), sink_);
    }
    try {
      set(read_log_settings(log_words_from_environment()));
    } catch (const Error&) {  // reported by the program or the Runtime at its start
      set(read_log_settings({}));
    }
  }

  std::shared_ptr<LogSink> sink_ = std::make_shared<LogSink>();
  std::array<std::unique_ptr<spdlog::logger>, kComponents.size()> loggers_;
};

/// Formats a notice whose text is printable already.
std::string format_notice(Component component, LogLevel level, std::string_view head,
                          std::string text) {
  Log& log = Log::of_process();
  const spdlog::logger& logger = log.logger(component);
  if (!logger.should_log(spdlog_level(level)) && level != LogLevel::critical) {
    return {};
  }
  if (text.ends_with('\n')) {
    text.pop_back();
  }
  return log.sink().notice_text(log_msg(logger.name(), spdlog_level(level), text), head);
}

void put(const std::string& lines) {
  if (!lines.empty()) {
    Log::of_process().sink().put(lines);
  }
}

}  // namespace

LogWords log_words_from_environment() {
  return {variable(kLogFormatVariable), variable(kLogLevelVariable), variable(kLogVariable)};
}

LogSettings read_log_settings(const LogWords& words) {
  LogSettings settings;
  const std::string format = lower(words.format.value);
  if (!format.empty() && format != "text" && format != "json") {
    throw bad_value(words.format, in_words(kLogFormats));
  }
  settings.format = format == "json" ? LogFormat::json : LogFormat::text;
  const auto level = level_named(words.level.value.empty() ? "info" : words.level.value);
  if (!level) {
    throw bad_value(words.level, in_words(kLogLevels));
  }
  settings.levels.fill(*level);
  read_components(words.components, settings.levels);
  return settings;
}

void set_log_settings(const LogSettings& settings) {
  Log::of_process().set(settings);
}

void prepare_log(const LogWords& words) {
  try {
    set_log_settings(read_log_settings(words));
  } catch (const Error&) {  // reported by the caller's own check
  }
}

LogFormat log_format() {
  return Log::of_process().sink().format();
}

void set_log_rank(int rank, int world_size) {
  Log::of_process().sink().set_rank(rank, world_size);
}

bool Logger::should_log(LogLevel level) const {
  return Log::of_process().logger(component_).should_log(spdlog_level(level));
}

void Logger::log(LogLevel level, fmt::string_view text, fmt::format_args args) const {
  if (should_log(level)) {
    Log::of_process().logger(component_).log(spdlog_level(level), fmt::vformat(text, args));
  }
}

void notice(Component component, LogLevel level, std::string_view head, std::string_view line) {
  put(notice_text(component, level, head, line));
}

void notice_lines(Component component, LogLevel level, std::string_view head,
                  std::string_view text) {
  put(format_notice(component, level, head, printable_lines(text)));
}

std::string notice_text(Component component, LogLevel level, std::string_view head,
                        std::string_view line) {
  return format_notice(component, level, head, printable(line));
}

LogRedirection::LogRedirection(Write write) {
  Log::of_process().sink().redirect(std::move(write));
}

LogRedirection::~LogRedirection() {
  Log::of_process().sink().redirect(write_to_stderr);
}

}  // namespace acc
