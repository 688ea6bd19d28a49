// SPDX-License-Identifier: Apache-2.0
#include "commands/compare/run.hpp"

#include "acc/base/error.hpp"
#include "acc/base/text.hpp"
#include "acc/base/variables.hpp"
#include "acc/base/written_file.hpp"
#include "acc/launcher/front_end.hpp"
#include "acc/settings/environment.hpp"
#include "spawn/child_launcher.hpp"
#include "spawn/create_child.hpp"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <deque>
#include <fstream>

namespace acc::launcher::commands::compare {
namespace {

/// Time in which a launcher ends its workers after SIGTERM (--shutdown_timeout is 30 s).
constexpr std::chrono::seconds kTimeToEnd{45};

constexpr std::array<std::string_view, 7> kWithValue = {"a",      "b",    "steps", "timeout",
                                                        "random", "keep", "report"};
constexpr std::array<std::string_view, 5> kSwitches = {"self", "json", "overwrite", "help", "h"};

/// Returns the number of words that an own flag at the beginning takes; 0 if it is none.
std::size_t own_words(std::span<const std::string> words) {
  std::string_view name = words.front();
  if (name == "-h") {
    return 1;
  }
  if (!name.starts_with("--")) {
    return 0;
  }
  name = name.substr(2, name.find('=') - 2);
  const bool has_value = words.front().find('=') != std::string::npos;
  if (std::ranges::find(kSwitches, name) != kSwitches.end()) {
    return 1;
  }
  if (std::ranges::find(kWithValue, name) == kWithValue.end()) {
    return 0;
  }
  return has_value ? 1 : std::min<std::size_t>(2, words.size());
}

/// True if the launcher's flag takes no value.
bool is_switch(const std::string& flag) {
  const std::vector<std::string> words = {flag, "program"};
  const Flags parsed = parse_flags(accelerate_front_end(), words);
  return parsed.values.size() == 1 && !parsed.program.empty();
}

void add_flag(SideRun& side, const std::string& key, const std::string& value) {
  const std::string flag = "--" + key;
  const std::string word = lower(value);
  if (!is_switch(flag)) {
    side.flags.insert(side.flags.end(), {flag, value});
  } else if (word == "true") {
    side.flags.push_back(flag);
  } else if (word != "false") {
    throw Error(Errc::invalid_argument,
                "compare: " + printable(key + "=" + value) + ": expected true or false");
  }
}

/// The signals that end this process, and that of a child that has ended.
sigset_t awaited_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGCHLD}) {
    sigaddset(&signals, signal);
  }
  return signals;
}

/// Blocks the signals during a run.
class BlockedSignals {
 public:
  BlockedSignals() : signals_(awaited_signals()) { ::sigprocmask(SIG_BLOCK, &signals_, &before_); }
  ~BlockedSignals() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

  [[nodiscard]] const sigset_t& before() const { return before_; }
  /// Returns the next signal; 0 after the time.
  [[nodiscard]] int next(std::chrono::milliseconds time) const {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
    const timespec limit{seconds.count(), std::chrono::nanoseconds(time - seconds).count()};
    const int signal = ::sigtimedwait(&signals_, nullptr, &limit);
    return signal < 0 ? 0 : signal;
  }

 private:
  sigset_t signals_;
  sigset_t before_{};
};

/// Gives the child the signal mask of this process before the run, and ends it with this process.
struct ChildSignals {
  const sigset_t& mask;
  boost::process::v2::error_code on_exec_setup(const spawn::ChildLauncher&,
                                               const boost::process::v2::filesystem::path&,
                                               const char* const*) const {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    ::sigprocmask(SIG_SETMASK, &mask, nullptr);
    return {};
  }
};

void end_child(pid_t child) {
  ::kill(child, SIGTERM);
  if (!spawn::reap_within(child, kTimeToEnd)) {
    ::kill(child, SIGKILL);  // its keeper then ends the workers
    spawn::reap_within(child, spawn::kTimeAfterKill);
  }
}

std::string end_text(int status) {
  if (WIFSIGNALED(status)) {
    return fmt::format("was ended by signal {}", WTERMSIG(status));
  }
  return WEXITSTATUS(status) == 0 ? ""
                                  : fmt::format("ended with exit status {}", WEXITSTATUS(status));
}

/// Waits for the end of the launch. Returns why it is not complete.
std::string await(pid_t child, const BlockedSignals& signals, std::chrono::seconds timeout) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + timeout;
  while (true) {
    int status = 0;
    if (::waitpid(child, &status, WNOHANG) == child) {
      return end_text(status);
    }
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) {
      end_child(child);
      return fmt::format("was still running after {} s (--timeout)", timeout.count());
    }
    const int signal = signals.next(std::min(left, std::chrono::milliseconds(60000)));
    if (signal != 0 && signal != SIGCHLD) {
      end_child(child);
      throw Interrupted{signal};
    }
  }
}

settings::Environment environment_of(const SideRun& side, const RunSettings& settings,
                                     const std::filesystem::path& folder) {
  settings::Environment environment = settings::current_environment();
  environment[kRecordVariable] = folder.string();
  environment[kRecordStepsVariable] = std::to_string(settings.steps);
  environment[kRecordRandomVariable] = settings.random;
  for (const auto& [name, value] : side.variables) {
    environment[name] = value;
  }
  return environment;
}

}  // namespace

SideRun read_side(const std::string& text) {
  SideRun side{text, {}, {}};
  std::error_code error;
  if (std::filesystem::is_regular_file(text, error)) {
    side.flags = {"--config_file", text};
    return side;
  }
  std::vector<std::pair<std::string, std::string>> values;
  for (const std::string_view part : split(text, ',')) {
    const auto equals = part.find('=');
    if (equals != std::string_view::npos && equals > 0) {
      values.emplace_back(part.substr(0, equals), part.substr(equals + 1));
    } else if (!values.empty()) {
      values.back().second += "," + std::string(part);
    } else {
      throw Error(Errc::invalid_argument,
                  "compare: " + printable(text) +
                      ": expected a configuration file, or key=value,… with flags of the launcher");
    }
  }
  for (const auto& [key, value] : values) {
    if (key.starts_with("env.")) {
      side.variables[key.substr(4)] = value;
    } else {
      add_flag(side, key, value);
    }
  }
  return side;
}

Words split_words(std::span<const std::string> arguments) {
  Words words;
  while (!arguments.empty()) {
    if (const std::size_t count = own_words(arguments); count > 0) {
      words.own.insert(words.own.end(), arguments.begin(),
                       arguments.begin() + static_cast<std::ptrdiff_t>(count));
      arguments = arguments.subspan(count);
      continue;
    }
    // The flags of the launcher up to the next own one.
    const auto typed = parse_flags(accelerate_front_end(), arguments).own_arguments.size();
    std::size_t count = 0;
    while (count < typed && own_words(arguments.subspan(count)) == 0) {
      ++count;
    }
    words.launcher.insert(words.launcher.end(), arguments.begin(),
                          arguments.begin() + static_cast<std::ptrdiff_t>(count));
    arguments = arguments.subspan(count);
    if (count == typed) {
      break;
    }
  }
  words.program.assign(arguments.begin(), arguments.end());
  return words;
}

std::string run_side(const SideRun& side, const Words& words, const RunSettings& settings,
                     const std::filesystem::path& folder, const std::filesystem::path& log) {
  std::vector<std::string> command = {"launch"};
  for (const auto* part : {&words.launcher, &side.flags, &words.program}) {
    command.insert(command.end(), part->begin(), part->end());
  }
  std::vector<std::string> variables;
  for (const auto& [name, value] : environment_of(side, settings, folder)) {
    variables.push_back(fmt::format("{}={}", name, value));
  }
  std::vector<const char*> pointers;
  pointers.reserve(variables.size() + 1);
  for (const std::string& each : variables) {
    pointers.push_back(each.c_str());
  }
  pointers.push_back(nullptr);
  const UniqueFd output = create_file(log);
  const BlockedSignals signals;
  spawn::ChildLauncher launcher;
  launcher.env = pointers.data();
  boost::process::v2::process_stdio streams{nullptr, {output.get()}, {output.get()}};
  const pid_t child =
      launcher.start("/proc/self/exe", command, streams, ChildSignals{signals.before()});
  if (child < 0) {
    throw Error(Errc::process,
                std::string("compare: cannot start the launcher: ") + std::strerror(errno));
  }
  return await(child, signals, settings.timeout);
}

std::string last_lines_of(const std::filesystem::path& file, std::size_t count) {
  std::ifstream stream(file);
  std::deque<std::string> lines;
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
    if (lines.size() > count) {
      lines.pop_front();
    }
  }
  std::string text;
  for (const std::string& line : lines) {
    text += "  " + printable(line) + "\n";
  }
  return text;
}

}  // namespace acc::launcher::commands::compare
