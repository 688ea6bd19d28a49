// SPDX-License-Identifier: Apache-2.0
// Lines on stderr of the launcher, its workers, the daemon and the sub-commands: their form, their
// levels, and wrong settings.
#include "acc/base/log.hpp"

#include "support/acclaunch.hpp"
#include "support/machines.hpp"
#include "support/program.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <csignal>
#include <map>
#include <regex>
#include <set>
#include <sstream>

using namespace acc::test;
using Json = nlohmann::json;
using Words = std::vector<std::string>;
using Variables = std::map<std::string, std::string>;

namespace {

constexpr const char* kDaemon = ACC_BIN_DIR "/acc-rendezvous";
constexpr const char* kProgram = ACC_BIN_DIR "/wrong_program";

Words launcher(Words words) {
  words.insert(words.begin(), ACC_BIN_DIR "/acclaunch");
  return words;
}

Words lines_of(const std::string& text) {
  Words lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  return lines;
}

/// Parses each line, and checks the fields that every line has.
std::vector<Json> diagnostics(const std::string& text) {
  static const std::regex kTime(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)");
  static const std::vector<std::string> kLevels = {"trace",   "debug", "info",
                                                   "warning", "error", "critical"};
  std::vector<Json> parsed;
  for (const std::string& line : lines_of(text)) {
    CAPTURE(line);
    const Json json = Json::parse(line, nullptr, false);
    REQUIRE(json.is_object());
    CHECK(std::regex_match(json.value("time", ""), kTime));
    CHECK(std::ranges::count(kLevels, json.value("level", "")) == 1);
    CHECK(std::ranges::count(acc::kComponents, json.value("logger", "")) == 1);
    CHECK_FALSE(json.value("host", "").empty());
    CHECK_FALSE(json.value("message", "").empty());
    CHECK(json.size() == (json.contains("rank") ? 6 : 5));
    parsed.push_back(json);
  }
  return parsed;
}

/// Returns the only line whose message contains `part`.
Json the_line(const std::vector<Json>& lines, const std::string& part) {
  std::vector<Json> found;
  std::ranges::copy_if(lines, std::back_inserter(found), [&](const Json& line) {
    return contains(line["message"].get<std::string>(), part);
  });
  CAPTURE(part);
  CAPTURE(Json(lines).dump(1));
  REQUIRE(found.size() == 1);
  return found.front();
}

}  // namespace

TEST_CASE("the form of every program's lines: text, and the same as JSON") {
  struct Case {
    Words command;
    Variables variables;
    int status;
    std::string text;   ///< line of the text form
    std::string level;  ///< of the JSON line
    std::string logger;
    std::string message;  ///< part of it
  };
  const std::string fails = "[ $RANK = 0 ] && exec sleep 1000; exit 3";
  const std::vector<Case> cases = {
      {launcher({"--unknown"}),
       {},
       2,
       "acclaunch: unknown flag --unknown",
       "critical",
       "launcher",
       "unknown flag --unknown"},
      {launcher({"verify", "/nowhere"}), {}, 2, "acclaunch: ", "critical", "launcher", "/nowhere"},
      {launcher({"torchrun", "--nproc-per-node", "2", "--no-python", "true"}),
       {},
       0,
       "acclaunch: OMP_NUM_THREADS is 1",
       "warning",
       "launcher",
       "OMP_NUM_THREADS is 1"},
      {acclaunch({"--cpu", "--num_processes", "2"}, fails),
       {},
       3,
       "acclaunch: rank 1 (pid ",
       "error",
       "launcher",
       "; ending the others"},
      {acclaunch({"--cpu", "--num_processes", "2"}, fails),
       {},
       3,
       "acclaunch: the job failed: rank 1",
       "critical",
       "launcher",
       "acclaunch: the job failed: rank 1"},
      {acclaunch({"--cpu", "--num_processes", "2"}, "kill -9 $PPID; exec sleep 1000"),
       {},
       137,
       "acclaunch: its supervisor process (pid ",
       "critical",
       "launcher",
       "its supervisor process (pid "},
      {{kDaemon, "--port", "x"},
       {},
       2,
       "acc-rendezvous: --port must be",
       "critical",
       "rendezvous",
       "--port must be"},
  };
  for (const Case& each : cases) {
    CAPTURE(each.command);
    Program text(each.command, each.variables);
    CHECK(text.wait() == each.status);
    CAPTURE(text.err());
    const Words lines = lines_of(text.err());
    CHECK(std::ranges::any_of(
        lines, [&](const std::string& line) { return line.starts_with(each.text); }));
    Variables variables = each.variables;
    variables["ACC_LOG_FORMAT"] = "json";
    Program json(each.command, variables);
    CHECK(json.wait() == each.status);
    CAPTURE(json.err());
    const Json line = the_line(diagnostics(json.err()), each.message);
    CHECK(line["level"] == each.level);
    CHECK(line["logger"] == each.logger);
    CHECK(json.out() == text.out());
  }
}

TEST_CASE("--log_format json: a flag is enough for every process, and for an error in the flags") {
  Program wrong(launcher({"--log_format", "json", "--zero_stage", "7", "--num_processes", "x"}));
  CHECK(wrong.wait() == 2);
  const Json both = the_line(diagnostics(wrong.err()), "--zero_stage");
  CHECK(contains(both["message"], "\n"));  // two faults in one object
  CHECK(contains(both["message"], "--num_processes"));

  Program killed(acclaunch({"--cpu", "--num_processes", "2", "--log_format=json"},
                           "kill -9 $PPID; exec sleep 1000"));
  CHECK(killed.wait() == 137);
  the_line(diagnostics(killed.err()), "its supervisor process");

  Program daemon({kDaemon, "--log_format", "json", "--port", "x"});
  CHECK(daemon.wait() == 2);
  the_line(diagnostics(daemon.err()), "--port must be");
}

TEST_CASE("debug lines of launcher and workers: what was chosen, in both forms") {
  const Words flags = {"--cpu", "--num_processes", "2", "--use_fsdp", "--log_level", "debug"};
  const auto job = [&](const Words& more) {
    Words words = launcher(flags);
    words.insert(words.end(), more.begin(), more.end());
    words.insert(words.end(), {kProgram, "none"});
    return words;
  };
  Program text(job({}));
  CHECK(text.wait() == 0);
  CAPTURE(text.err());
  static const std::regex kOfWorker(
      R"(\[1\]:? \d\d:\d\d:\d\d\.\d{3} debug collectives \[1/2\]: group world of ranks 0-1: .*)");
  static const std::regex kOfLauncher(
      R"(\d\d:\d\d:\d\d\.\d{3} debug launcher: machines: 1, workers here: 2, .*)");
  for (const std::regex& pattern : {kOfWorker, kOfLauncher}) {
    CHECK(std::ranges::any_of(lines_of(text.err()), [&](const std::string& line) {
      return std::regex_match(line, pattern);
    }));
  }

  Program json(job({"--log_format", "json"}));
  CHECK(json.wait() == 0);
  CAPTURE(json.err());
  const auto lines = diagnostics(json.err());
  CHECK(the_line(lines, "workers here: 2")["logger"] == "launcher");
  CHECK_FALSE(the_line(lines, "workers here: 2").contains("rank"));
  for (const int rank : {0, 1}) {
    std::vector<Json> own;
    std::ranges::copy_if(lines, std::back_inserter(own),
                         [&](const Json& line) { return line.value("rank", -1) == rank; });
    CHECK(the_line(own, "group world of ranks 0-1")["logger"] == "collectives");
    CHECK(the_line(own, "full_shard (from fsdp)")["logger"] == "runtime");
    CHECK(the_line(own, "unit fc2: 32 elements with padding")["logger"] == "runtime");
  }
}

TEST_CASE("debug lines of a round: what the daemon and each machine decide") {
  const ReservedPort port;
  const Variables variables = {{"ACC_LOG_FORMAT", "json"}, {"ACC_LOG_LEVEL", "debug"}};
  Program daemon({kDaemon, "--port", port.text()}, variables);
  daemon.wait_for_text("listening on ");
  const Words machine = torchrun(c10d_flags("2", port, {"--rdzv-id", "seven"}), "true");
  Program first(machine, variables);
  Program second(machine, variables);
  CHECK(first.wait() == 0);
  CHECK(second.wait() == 0);
  daemon.signal(SIGTERM);
  CHECK(daemon.wait() == 0);
  CAPTURE(first.err());
  CAPTURE(daemon.err());
  const std::string where = "127.0.0.1:" + port.text();
  std::set<std::string> formed;
  for (const Program* each : {&first, &second}) {
    const auto lines = diagnostics(each->err());
    CHECK(the_line(lines, "connecting to " + where)["logger"] == "rendezvous");
    formed.insert(the_line(lines, "round 0 is formed at " + where)["message"]);
  }
  CHECK(formed == std::set<std::string>{"round 0 is formed at " + where + ": machine 0 of 2",
                                        "round 0 is formed at " + where + ": machine 1 of 2"});
  const auto lines = diagnostics(daemon.err());
  the_line(lines, "job 'seven': round 0 is formed: 2 machines, 2 workers, restart 0");
  the_line(lines, "job 'seven': the job is over: every worker succeeded");
}

TEST_CASE("levels: which lines are printed, and that a failure always is") {
  struct Case {
    Words flags;
    Variables variables;
    bool prints_debug;
    bool prints_notice;
  };
  const std::vector<Case> cases = {
      {{}, {}, false, true},
      {{"--log_level", "debug"}, {}, true, true},
      {{"--log_level=warn"}, {}, false, true},
      {{"--log_level=warning"}, {}, false, true},
      {{"--log_level", "error"}, {}, false, false},
      {{"--log_level", "off"}, {}, false, false},
      {{}, {{"ACC_LOG_LEVEL", "DEBUG"}}, true, true},
      {{}, {{"ACC_LOG_LEVEL", "off"}}, false, false},
      {{}, {{"ACC_LOG_LEVEL", "off"}, {"ACC_LOG", "runtime:off,launcher:debug"}}, true, true},
      {{"--log_level", "info"}, {{"ACC_LOG_LEVEL", "off"}}, false, true},
      {{"--log_level", "info"}, {{"ACC_LOG", "launcher:debug"}}, false, true},
  };
  for (const std::string front_end : {"torchrun", "deepspeed"}) {
    for (const Case& each : cases) {
      CAPTURE(front_end);
      CAPTURE(each.flags);
      CAPTURE(each.variables);
      Words words = {front_end};
      words.insert(words.end(), each.flags.begin(), each.flags.end());
      if (front_end == "torchrun") {
        words.insert(words.end(), {"--nproc-per-node", "2", "--no-python"});
      } else {
        words.insert(words.end(), {"--num_accelerators", "2", "--no_python", "--no_local_rank"});
      }
      words.insert(words.end(), {"false"});
      Program job(launcher(words), each.variables);
      CHECK(job.wait() == 1);
      CAPTURE(job.err());
      CHECK(contains(job.err(), " debug launcher: ") == each.prints_debug);
      const std::string notice =
          front_end == "torchrun" ? "acclaunch: OMP_NUM_THREADS is 1" : "acclaunch: no GPU ";
      CHECK(contains(job.err(), notice) == each.prints_notice);
      CHECK(contains(job.err(), "acclaunch: the job failed: "));
    }
  }
}

TEST_CASE("a wrong word is an error with its place, what is expected and what was found") {
  struct Case {
    Words flags;
    Variables variables;
    Words parts;  ///< of the message
  };
  const std::vector<Case> of_variables = {
      {{}, {{"ACC_LOG_FORMAT", "xml"}}, {"ACC_LOG_FORMAT must be text or json, got \"xml\""}},
      {{},
       {{"ACC_LOG_LEVEL", "inof"}},
       {"ACC_LOG_LEVEL must be trace, debug, info, warn, warning, error, critical or off, got "
        "\"inof\""}},
      {{}, {{"ACC_LOG", "runtime:loud"}}, {"ACC_LOG must be COMPONENT:LEVEL", "\"runtime:loud\""}},
      {{}, {{"ACC_LOG", "lancher:debug"}}, {"launcher, rendezvous, collectives", "\"lancher:"}},
      {{}, {{"ACC_LOG", "debug"}}, {"ACC_LOG must be COMPONENT:LEVEL", "got \"debug\""}},
  };
  const std::vector<Case> of_flags = {
      {{"--log_format", "xml"}, {}, {"--log_format must be text or json, got \"xml\""}},
      {{"--log_level", "inof"}, {}, {"--log_level must be", "\"inof\"; did you mean \"info\"?"}},
  };
  struct Target {
    Words before;
    Words after;
    bool has_flags;
  };
  const std::vector<Target> targets = {
      {launcher({"--cpu"}), {"--no_python", "true"}, true},
      {launcher({"torchrun"}), {"--no-python", "true"}, true},
      {launcher({"deepspeed"}), {"--no_python", "true"}, true},
      {launcher({"doctor", "--cpu"}), {}, true},
      {launcher({"expand-hosts"}), {"node[1-2]"}, false},
      {{kDaemon}, {}, true},
      {{kProgram, "none"}, {}, false},
  };
  for (const Target& target : targets) {
    std::vector<Case> cases = of_variables;
    if (target.has_flags) {
      cases.insert(cases.end(), of_flags.begin(), of_flags.end());
    }
    for (const Case& each : cases) {
      Words command = target.before;
      command.insert(command.end(), each.flags.begin(), each.flags.end());
      command.insert(command.end(), target.after.begin(), target.after.end());
      CAPTURE(command);
      CAPTURE(each.variables);
      Program program(command, each.variables);
      CHECK(program.wait() == 2);
      CAPTURE(program.err());
      for (const std::string& part : each.parts) {
        CHECK(contains(program.err(), part));
      }
    }
  }
}

TEST_CASE("acc-rendezvous: its lines in both forms, with untrusted text escaped") {
  const std::string shown = R"(ACC_RENDEZVOUS_"\x1b[2J\xff is not a setting)";
  for (const bool is_json : {false, true}) {
    Program daemon({kDaemon, "--port", "0"},
                   {{"ACC_RENDEZVOUS_LOG_FORMAT", is_json ? "json" : "text"},
                    {"ACC_RENDEZVOUS_LOG_LEVEL", "debug"},
                    {"ACC_RENDEZVOUS_\"\x1b[2J\xff", "1"}});
    daemon.wait_for_text("listening on ");
    daemon.signal(SIGHUP);
    daemon.wait_for_text("connections 0");
    daemon.signal(SIGTERM);
    CHECK(daemon.wait() == 0);
    CAPTURE(daemon.err());
    if (is_json) {
      const auto lines = diagnostics(daemon.err());
      CHECK(the_line(lines, shown)["level"] == "warning");
      CHECK(the_line(lines, "connections 0")["level"] == "info");
      CHECK(the_line(lines, "connections 0")["logger"] == "rendezvous");
    } else {
      CHECK(contains(daemon.err(), " warning rendezvous: " + shown));
      CHECK(contains(daemon.err(), " info rendezvous: jobs 0, connections 0"));
    }
  }
}

TEST_CASE("a line of the launcher is never mixed with a worker's line") {
  // Four workers write long lines as fast as they can, to one pipe with the launcher's lines of
  // several restarts.
  const std::string script =
      "i=0; while [ $i -lt 300 ]; do echo $0$0$0$0; echo $0$0$0$0 >&2; i=$((i+1)); done; exit 1";
  const std::string unit(500, 'x');
  Words words =
      launcher({"--cpu", "--num_processes", "4", "--max_restarts", "5", "--restart_backoff", "0",
                "--log_format", "json", "--log_level", "debug", "/bin/sh", "-c", script, unit});
  std::string command = "exec";
  for (const std::string& word : words) {
    command += " '" + word + "'";
  }
  Program job({"/bin/sh", "-c", command + " 2>&1"});
  CHECK(job.wait() == 1);
  int num_restarts = 0;
  for (const std::string& line : lines_of(job.out())) {
    if (line.size() > 1900 && line.size() < 2100 && line.starts_with("[")) {
      CHECK(line.ends_with(unit));
      CHECK(std::ranges::count(line, 'x') == 2000);
      continue;
    }
    const Json json = Json::parse(line, nullptr, false);
    REQUIRE_MESSAGE(json.is_object(), line.substr(0, 300));
    num_restarts += json["message"].get<std::string>().starts_with("restart ") ? 1 : 0;
  }
  CHECK(num_restarts == 5);
}
