// SPDX-License-Identifier: Apache-2.0
// acclaunch compare: where two trainings part, and why (docs/compare.md).
#include "acc/base/atomic_file.hpp"
#include "acc/base/error.hpp"
#include "acc/base/json.hpp"
#include "acc/base/log.hpp"
#include "acc/base/temporary_folder.hpp"
#include "acc/base/text.hpp"
#include "commands/commands.hpp"
#include "commands/compare/compare.hpp"
#include "commands/compare/run.hpp"
#include "commands/options.hpp"
#include "host/own_variables.hpp"

#include <fmt/format.h>
#include <stdlib.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>

namespace acc::launcher::commands::compare {
namespace {

namespace fs = std::filesystem;

constexpr int kDifferent = 1;
constexpr int kNotComparable = 2;
constexpr std::size_t kShownLines = 15;

struct Options {
  std::vector<std::string> folders;
  std::string a;
  std::string b;
  bool self = false;
  int steps = 20;
  int timeout = 3600;
  std::string random = "keep";
  std::string keep;
  std::string report;
  bool json = false;
  bool overwrite = false;
};

Options read_options(const std::vector<std::string>& words) {
  OptionParser parser(
      "acclaunch compare --a SIDE --b SIDE [flags of the launcher] PROGRAM ...\n"
      "acclaunch compare --self [flags of the launcher] PROGRAM ...\n"
      "acclaunch compare FOLDER FOLDER\n"
      "runs a program in two configurations, or reads two recordings, and says where they part, "
      "and why.\nSIDE is a configuration file, or key=value,... with flags of the launcher and "
      "env.NAME=VALUE.\nExit status: 0 equal to rounding, 1 different, 2 not comparable.",
      "acclaunch compare");
  Options options;
  parser.add_option("folders", options.folders, "two folders that --keep or ACC_RECORD made");
  parser.add_option("--a", options.a, "the first side");
  parser.add_option("--b", options.b, "the second side");
  parser.add_flag("--self", options.self,
                  "one configuration twice, then with twice as many processes");
  parser.add_option("--steps", options.steps, "steps of the optimizer (20)").check_positive();
  parser.add_option("--timeout", options.timeout, "seconds that a side may take (3600)")
      .check_positive();
  parser
      .add_option("--random", options.random,
                  "random modules such as dropout: as the program has them, seeded before each "
                  "forward, or off")
      .check_member({"keep", "equal", "off"});
  parser.add_option("--keep", options.keep, "keep recordings and logs in this folder");
  parser.add_option("--report", options.report, "write a page of HTML");
  parser.add_flag("--json", options.json, "print a JSON object (docs/compare.md)");
  parser.add_flag("--overwrite", options.overwrite, "replace the files of --keep and --report");
  parser.parse(words);
  return options;
}

/// The folder of recordings and logs: that of --keep, or one that is removed.
class Place {
 public:
  explicit Place(const std::string& kept) : path_(kept), is_kept_(!kept.empty()) {
    if (is_kept_) {
      fs::create_directories(path_);
      return;
    }
    std::string name =
        fs::path(host::value_of(settings::current_environment(), host::variables.temporary_folder,
                                default_temporary_folder())) /
        "acclaunch-compare-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) {
      throw Error(Errc::config, "compare: cannot make the folder " + name + ": " +
                                    std::strerror(errno) + "; set TMPDIR");
    }
    path_ = name;
  }
  ~Place() {
    std::error_code error;
    if (!is_kept_) {
      fs::remove_all(path_, error);
    }
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  /// An empty folder for the recording of a side.
  [[nodiscard]] fs::path recording(const std::string& name, Overwrite overwrite) const {
    fs::path folder = path_ / name;
    check_free(folder, overwrite);
    if (fs::is_directory(folder)) {
      for (const auto& entry : fs::directory_iterator(folder)) {
        if (entry.path().extension() == ".jsonl") {
          fs::remove(entry.path());
        }
      }
    }
    fs::create_directories(folder);
    return folder;
  }
  [[nodiscard]] fs::path log(const std::string& name) const { return path_ / (name + ".log"); }
  [[nodiscard]] bool is_kept() const { return is_kept_; }

 private:
  fs::path path_;
  bool is_kept_;
};

/// Says what went wrong, to stderr.
void complain(const std::string& text) {
  notice_lines(Component::launcher, LogLevel::err, "compare: ", text);
}

struct Recorded {
  Side side;
  bool is_complete = true;
};

Recorded recorded(const fs::path& folder, const std::string& label, const std::string& title) {
  const std::vector<RankRecording> ranks = read_recording(folder);
  Recorded result{combined(ranks, label, title)};
  if (result.side.steps.empty()) {
    throw Error(Errc::config,
                printable(title) + ": no step of an optimizer was recorded on all ranks");
  }
  if (!result.side.has_ended) {
    complain(label + ": a rank ended before its recording was complete");
    result.is_complete = false;
  }
  return result;
}

/// Runs a side and reads its recording. Throws Error if nothing was recorded.
Recorded run_and_read(const SideRun& side, const std::string& label, const std::string& name,
                      const Words& words, const Options& options, const Place& place) {
  const fs::path folder = place.recording(name, options.overwrite ? Overwrite::yes : Overwrite::no);
  const fs::path log = place.log(name);
  notice(Component::launcher, LogLevel::info,
         "compare: ", fmt::format("runs {}: {}", label, printable(side.title)));
  const RunSettings settings{options.steps, options.random, std::chrono::seconds(options.timeout)};
  const std::string failure = run_side(side, words, settings, fs::absolute(folder), log);
  if (!failure.empty()) {
    complain(fmt::format(
        "{} ({}) {}; the last lines of its output{}:\n{}", label, printable(side.title), failure,
        place.is_kept() ? ", " + printable(log.string()) : "", last_lines_of(log, kShownLines)));
  }
  try {
    Recorded result = recorded(folder, label, side.title);
    result.is_complete = result.is_complete && failure.empty();
    return result;
  } catch (const Error& error) {
    if (error.code() != Errc::not_found) {
      throw;
    }
    throw Error(Errc::config,
                label + " recorded nothing: " +
                    (failure.empty() ? "its program is not one of torch or libacc_runtime, or has "
                                       "taken no step"
                                     : "its launch " + failure));
  }
}

/// What the command prints, over one or two comparisons.
class Output {
 public:
  explicit Output(const Options& options) : options_(options) {}

  void add(const Recorded& a, const Recorded& b) {
    const Comparison comparison = compare_sides(a.side, b.side);
    status_ = std::max(status_, comparison.first ? kDifferent : 0);
    is_complete_ = is_complete_ && a.is_complete && b.is_complete;
    if (options_.json) {
      comparisons_.push_back(verdict_json(a.side, b.side, comparison));
    } else {
      const std::string text = verdict_text(a.side, b.side, comparison);
      std::printf("%s%s", is_first_ ? "" : "\n", text.c_str());
    }
    if (!options_.report.empty()) {
      const bool overwrites = options_.overwrite || !is_first_;
      write_file(options_.report, report_page(a.side, b.side, comparison),
                 overwrites ? Overwrite::yes : Overwrite::no);
    }
    is_first_ = false;
  }

  int finish() {
    const int status = is_complete_ ? status_ : kNotComparable;
    if (options_.json) {
      const nlohmann::ordered_json object = {{"exit_status", status},
                                             {"comparisons", comparisons_}};
      std::printf("%s\n", lossy_text_of_json(object, 2).c_str());
    }
    return status;
  }

 private:
  const Options& options_;
  nlohmann::ordered_json comparisons_ = nlohmann::ordered_json::array();
  int status_ = 0;
  bool is_first_ = true;
  bool is_complete_ = true;
};

/// One configuration twice, then with twice as many processes.
void compare_with_itself(const Words& words, const Options& options, const Place& place,
                         Output& output) {
  SideRun side = options.a.empty() ? SideRun{"once", {}, {}} : read_side(options.a);
  const Recorded once = run_and_read(side, "A", "a", words, options, place);
  side.title = "the same again";
  output.add(once, run_and_read(side, "B", "b", words, options, place));
  const int ranks = 2 * once.side.world_size;
  side.title = fmt::format("with {} processes", ranks);
  side.flags.insert(side.flags.end(), {"--num_processes", std::to_string(ranks)});
  output.add(once, run_and_read(side, "B", "double", words, options, place));
}

int run(const Words& words, const Options& options) {
  Output output(options);
  if (!options.report.empty()) {
    check_free(options.report, options.overwrite ? Overwrite::yes : Overwrite::no);
  }
  const bool reads = !options.self && options.a.empty() && options.b.empty();
  if (reads) {
    if (words.program.size() != 2 || !words.launcher.empty()) {
      throw Error(Errc::invalid_argument,
                  "compare: expected --a SIDE --b SIDE and a program, --self and a program, or two "
                  "folders of recordings; see acclaunch help compare");
    }
    const std::string& a = words.program.front();
    const std::string& b = words.program.back();
    output.add(recorded(a, "A", a), recorded(b, "B", b));
    return output.finish();
  }
  if (words.program.empty() || (!options.self && (options.a.empty() || options.b.empty())) ||
      (options.self && !options.b.empty())) {
    throw Error(Errc::invalid_argument,
                words.program.empty()
                    ? "compare: the program is missing"
                    : "compare: give both --a and --b, or --self with or without --a");
  }
  const Place place(options.keep);
  if (options.self) {
    compare_with_itself(words, options, place, output);
  } else {
    const SideRun side_a = read_side(options.a);
    const SideRun side_b = read_side(options.b);
    const Recorded a = run_and_read(side_a, "A", "a", words, options, place);
    output.add(a, run_and_read(side_b, "B", "b", words, options, place));
  }
  return output.finish();
}

}  // namespace

/// Returns the exit status of `acclaunch compare`.
static int run_command(std::span<const std::string> arguments) {
  const Words words = split_words(arguments);
  const Options options = read_options(words.own);
  int signal = 0;
  try {
    return run(words, options);
  } catch (const Interrupted& interrupted) {
    signal = interrupted.signal;
  }
  std::raise(signal);
  return 128 + signal;  // the signal is ignored
}

}  // namespace acc::launcher::commands::compare

namespace acc::launcher::commands {

int compare_command(std::span<const std::string> arguments) {
  return compare::run_command(arguments);
}

}  // namespace acc::launcher::commands
