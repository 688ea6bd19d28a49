// SPDX-License-Identifier: Apache-2.0
// acclaunch top: jobs and their ranks, live in a terminal, or once as a table or as JSON
// (docs/watching.md).
#include "acc/base/error.hpp"
#include "acc/base/json.hpp"
#include "acc/base/text.hpp"
#include "acc/base/variables.hpp"
#include "acc/rendezvous/unix_address.hpp"
#include "commands/commands.hpp"
#include "commands/options.hpp"
#include "commands/top/screen.hpp"
#include "commands/top/top_text.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>

namespace acc::launcher::commands {
namespace {

using Json = nlohmann::json;

constexpr int kDefaultPort = 29500;

double unix_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

bool has_token() {
  return !process_variable(kTokenFileVariable).value_or("").empty();
}

/// Parses HOST, HOST:PORT or [IPv6]:PORT, or unix:/path. With a token in the environment, or with
/// https://, the server has to know it; http:// is for one without a token.
std::unique_ptr<JobSource> server_of(const std::string& given, const std::string& job) {
  if (rendezvous::is_unix(given)) {
    if (const std::string fault = rendezvous::unix_fault(given); !fault.empty()) {
      throw Error(Errc::invalid_argument, "--rdzv_endpoint: " + printable(given) + ": " + fault);
    }
    return std::make_unique<ServerJobs>(rendezvous::HttpReader({given}), job);
  }
  std::string endpoint = given;
  const auto take = [&](std::string_view scheme) {
    const bool has_scheme = endpoint.starts_with(scheme);
    endpoint.erase(0, has_scheme ? scheme.size() : 0);
    return has_scheme;
  };
  const bool is_plain = take("http://");
  const bool is_secure = !is_plain && (take("https://") || has_token());
  if (endpoint != given && endpoint.ends_with('/')) {
    endpoint.pop_back();
  }
  const auto colon = endpoint.rfind(':');
  const bool has_port =
      colon != std::string::npos && endpoint.find(']', colon) == std::string::npos;
  const auto port =
      has_port ? read_number(endpoint.substr(colon + 1)) : std::optional(kDefaultPort);
  const std::string host = has_port ? endpoint.substr(0, colon) : endpoint;
  if (host.empty() || !port || *port < 1 || *port > 65535) {
    throw Error(Errc::invalid_argument,
                "--rdzv_endpoint: expected HOST:PORT, found \"" + printable(given) + "\"");
  }
  return std::make_unique<ServerJobs>(
      rendezvous::HttpReader({host, static_cast<std::uint16_t>(*port), is_secure}), job);
}

void print_once(JobSource& source, bool as_json) {
  const std::vector<WatchedJob> jobs = source.look();
  std::string text;
  if (as_json) {
    Json list = Json::array();
    for (const WatchedJob& each : jobs) {
      list.push_back({{"job", each.job}, {"ranks", each.ranks}});
    }
    text = lossy_text_of_json(list, 2) + "\n";
  } else {
    const bool styled = ::isatty(STDOUT_FILENO) != 0 && allows_colours();
    for (const std::string& line :
         jobs.empty()
             ? source.advice()
             : top_lines(jobs, {.now = unix_now(), .styled = styled, .coloured = styled})) {
      text += line + "\n";
    }
  }
  std::fputs(text.c_str(), stdout);
}

/// The live display.
class Live {
 public:
  explicit Live(JobSource& source, std::chrono::milliseconds interval)
      : source_(source), interval_(interval) {}

  void run() {
    look();
    while (true) {
      show();
      const auto now = std::chrono::steady_clock::now();
      const auto time = std::chrono::ceil<std::chrono::milliseconds>(next_ - now);
      switch (screen_.wait(std::max(time, std::chrono::milliseconds(0)))) {
        case Screen::Key::quit: return;
        case Screen::Key::up: scroll(-1); break;
        case Screen::Key::down: scroll(1); break;
        case Screen::Key::left: choose(-1); break;
        case Screen::Key::right: choose(1); break;
        case Screen::Key::page_up: scroll(-page()); break;
        case Screen::Key::page_down: scroll(page()); break;
        case Screen::Key::home: first_ = 0; break;
        case Screen::Key::end: scroll(std::ssize(lines_)); break;
        case Screen::Key::order: slowest_first_ = !slowest_first_; break;
        case Screen::Key::none:
        case Screen::Key::resized: break;
      }
      if (std::chrono::steady_clock::now() >= next_) {
        look();
      }
    }
  }

 private:
  static constexpr std::size_t kHeadLines = 2;

  /// Keeps the last state when a look fails, and says why.
  void look() {
    try {
      jobs_ = source_.look();
      trouble_.clear();
    } catch (const Error& error) {
      trouble_ = printable(error.what());
    }
    next_ = std::chrono::steady_clock::now() + interval_;
  }

  void show() {
    const std::size_t chosen = index_of_chosen();
    const std::span<const WatchedJob> shown_jobs =
        chosen < jobs_.size() ? std::span(jobs_).subspan(chosen, 1) : std::span(jobs_);
    if (!jobs_.empty()) {
      lines_ = top_lines(shown_jobs, {.now = unix_now(),
                                      .width = screen_.width(),
                                      .slowest_first = slowest_first_,
                                      .styled = true,
                                      .coloured = allows_colours()});
    } else {
      lines_ = trouble_.empty() ? source_.advice() : std::vector<std::string>();
    }
    scroll(0);
    const auto time = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
    std::vector<std::string> shown = {
        fmt::format("\x1b[7macclaunch top - {}  {:%H:%M:%S}  {}  q: quit  up, down: scroll  left, "
                    "right: job  s: {}\x1b[K\x1b[0m",
                    source_.name(), fmt::localtime(time),
                    chosen < jobs_.size() ? fmt::format("job {} of {}", chosen + 1, jobs_.size())
                                          : fmt::format("all {} jobs", jobs_.size()),
                    slowest_first_ ? "by rank" : "slowest first"),
        trouble_.empty() || !allows_colours() ? trouble_ : "\x1b[31m" + trouble_ + "\x1b[0m"};
    const auto begin = lines_.begin() + static_cast<std::ptrdiff_t>(first_);
    shown.insert(shown.end(), begin, lines_.end());
    screen_.draw(shown);
  }

  /// Returns the index of the chosen job; the number of jobs if all are shown.
  [[nodiscard]] std::size_t index_of_chosen() const {
    const auto found = std::ranges::find_if(
        jobs_, [&](const WatchedJob& each) { return each.job.value("id", Json()) == chosen_; });
    return static_cast<std::size_t>(found - jobs_.begin());
  }
  /// Goes to the next or previous job; all jobs are between the last and the first one.
  void choose(std::ptrdiff_t step) {
    const auto count = std::ssize(jobs_) + 1;
    const auto next = (static_cast<std::ptrdiff_t>(index_of_chosen()) + step + count) % count;
    chosen_ = next == std::ssize(jobs_)
                  ? Json()
                  : jobs_[static_cast<std::size_t>(next)].job.value("id", Json());
    first_ = 0;
  }

  [[nodiscard]] std::ptrdiff_t page() const {
    return std::max<std::ptrdiff_t>(1, static_cast<std::ptrdiff_t>(screen_.height()) -
                                           static_cast<std::ptrdiff_t>(kHeadLines) - 1);
  }
  void scroll(std::ptrdiff_t lines) {
    const auto last = std::max<std::ptrdiff_t>(0, std::ssize(lines_) - page() - 1);
    first_ = static_cast<std::size_t>(
        std::clamp<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(first_) + lines, 0, last));
  }

  JobSource& source_;
  std::chrono::milliseconds interval_;
  Screen screen_;
  std::vector<WatchedJob> jobs_;
  Json chosen_;  ///< ID of the job that is shown; null: all
  std::string trouble_;
  std::vector<std::string> lines_;
  std::size_t first_ = 0;  ///< first line that is shown
  bool slowest_first_ = false;
  std::chrono::steady_clock::time_point next_;
};

}  // namespace

int top_command(std::span<const std::string> arguments) {
  OptionParser parser(
      "acclaunch top [JOB]: shows jobs and their ranks in a terminal, live: step, loss, tokens/s, "
      "waits,\nmemory and CPU. JOB is a run ID or the process ID of an acclaunch on this machine; "
      "default: all jobs\nof this user on this machine, or of the server.",
      "acclaunch top");
  std::string job;
  std::string endpoint;
  bool once = false;
  bool as_json = false;
  double interval = 1.0;
  parser.add_option("job", job, "run ID, or process ID of an acclaunch");
  parser.add_option(
      "--rdzv_endpoint", endpoint,
      "HOST:PORT of acc-rendezvous, or of an acclaunch that serves its job or has a "
      "--status_port; port 29500 by default. https://HOST:PORT if it has a token, which "
      "is in the file ACC_RENDEZVOUS_TOKEN_FILE; or unix:/PATH of a daemon");
  parser.add_flag("--once", once, "print a table once");
  parser.add_flag(
      "--json", as_json,
      "print a JSON list once: for each job the objects `job` and `ranks` of the HTTP API");
  parser.add_option("--interval", interval, "seconds between two looks; default 1")
      .check_range(0.1, 3600.0);
  parser.parse(arguments);
  const auto source =
      endpoint.empty() ? std::make_unique<LocalJobs>(job) : server_of(endpoint, job);
  if (once || as_json) {
    print_once(*source, as_json);
    return 0;
  }
  Live(*source, std::chrono::milliseconds(static_cast<int>(interval * 1000.0))).run();
  return 0;
}

}  // namespace acc::launcher::commands
