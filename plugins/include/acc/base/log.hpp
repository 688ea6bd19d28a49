// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/export.hpp"
#include "acc/base/sourced.hpp"

#include <fmt/core.h>

#include <array>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

// Everything that the programs and libraries print to stderr goes through one log. A process has
// two kinds of lines: lines of the library loggers (`logger`), for diagnosis, and notices
// (`notice`), which are the program's messages to its user. Both have a level, and with
// LogFormat::json both are JSON objects.
namespace acc {

/// Parts of the programs with a logger and a level of their own.
enum class Component { launcher, rendezvous, collectives, runtime, tools };
inline constexpr std::array<std::string_view, 5> kComponents = {"launcher", "rendezvous",
                                                                "collectives", "runtime", "tools"};

/// The levels of spdlog, in ascending order.
enum class LogLevel { trace, debug, info, warn, err, critical, off };

enum class LogFormat {
  text,  ///< `HH:MM:SS.mmm LEVEL LOGGER: MESSAGE`; a notice is `PROGRAM: MESSAGE`
  json,  ///< one object per line: time, level, logger, host, rank (of a worker), message
};

// Accepted words, in the notation of the settings table. `warning` and `critical` are Python's.
inline constexpr std::string_view kLogLevels = "trace|debug|info|warn|warning|error|critical|off";
inline constexpr std::string_view kLogFormats = "text|json";

/// Names of the environment variables. The launcher passes them on to workers.
inline constexpr const char* kLogFormatVariable = "ACC_LOG_FORMAT";
inline constexpr const char* kLogLevelVariable = "ACC_LOG_LEVEL";
inline constexpr const char* kLogVariable = "ACC_LOG";

/// Settings of the log in words, with their origins. An empty text stands for the default.
struct LogWords {
  Sourced<std::string> format;      ///< one of kLogFormats; default: text
  Sourced<std::string> level;       ///< one of kLogLevels; default: info
  Sourced<std::string> components;  ///< exceptions: `collectives:debug,runtime:warn`
};

struct LogSettings {
  LogFormat format = LogFormat::text;
  std::array<LogLevel, kComponents.size()> levels{};  ///< by component
};

/// Returns the words of ACC_LOG_FORMAT, ACC_LOG_LEVEL and ACC_LOG.
LogWords log_words_from_environment();

/// Throws Error(config) that names the origin, the expected words and the word found.
LogSettings read_log_settings(const LogWords& words);

/// Replaces the settings of this process. Until the first call those of the environment hold, if
/// they are valid.
void set_log_settings(const LogSettings& settings);

/// Sets the log by words if they are valid, and leaves it unchanged otherwise. For the time before
/// a program has read all its settings: it reports wrong words together with its other faults.
void prepare_log(const LogWords& words);

LogFormat log_format();

/// Names the rank of this process in its later lines. Called by workers.
void set_log_rank(int rank, int world_size);

/// The logger of a component. Texts are formatted by fmt. A call below the level formats nothing.
/// Control characters in messages are escaped. Thread-safe. Callers do not see spdlog, whose
/// headers would make each of their source files compile for seconds longer.
class Logger {
 public:
  explicit Logger(Component component) : component_(component) {}

  [[nodiscard]] bool should_log(LogLevel level) const;

  template <class... Args>
  void debug(fmt::format_string<Args...> text, Args&&... args) const {
    log(LogLevel::debug, text, fmt::make_format_args(args...));
  }
  template <class... Args>
  void info(fmt::format_string<Args...> text, Args&&... args) const {
    log(LogLevel::info, text, fmt::make_format_args(args...));
  }
  template <class... Args>
  void warn(fmt::format_string<Args...> text, Args&&... args) const {
    log(LogLevel::warn, text, fmt::make_format_args(args...));
  }
  template <class... Args>
  void error(fmt::format_string<Args...> text, Args&&... args) const {
    log(LogLevel::err, text, fmt::make_format_args(args...));
  }

 private:
  void log(LogLevel level, fmt::string_view text, fmt::format_args args) const;

  Component component_;
};

inline Logger logger(Component component) {
  return Logger(component);
}

/// Prints a line for the user: in text format `head` and the line, without time and level. Level
/// `critical` is for the reason why the program ends; such a line is printed even if the level is
/// `off`. Control characters, newlines among them, are escaped.
ACC_API void notice(Component component, LogLevel level, std::string_view head,
                    std::string_view line);

/// The same for a text of several lines. In text format each line begins with `head`; in JSON the
/// text is one object.
ACC_API void notice_lines(Component component, LogLevel level, std::string_view head,
                          std::string_view text);

/// Returns what `notice` would print, with a newline at the end, or "" if the level is off.
std::string notice_text(Component component, LogLevel level, std::string_view head,
                        std::string_view line);

/// Passes this process's lines to a function instead of stderr, until the object is destroyed. The
/// function gets complete lines; it must not log. One object at a time.
class LogRedirection {
 public:
  explicit LogRedirection(std::function<void(std::string_view lines)> write);
  LogRedirection(const LogRedirection&) = delete;
  LogRedirection& operator=(const LogRedirection&) = delete;
  ~LogRedirection();
};

/// True for a line that a process of ours has printed in JSON format.
inline bool is_json_diagnostic(std::string_view line) {
  return line.starts_with(R"({"time":")");
}

}  // namespace acc
