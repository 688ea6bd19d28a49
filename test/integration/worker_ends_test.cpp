// SPDX-License-Identifier: Apache-2.0
// The job's exit status follows from how its workers end: every exit code, every fatal signal, and
// every reaction to a stop signal.
#include "support/acclaunch.hpp"
#include "support/left_behind.hpp"
#include "support/program.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <memory>

using namespace acc::test;

namespace {

/// Number of jobs that run concurrently.
constexpr int kAtOnce = 16;

struct Ended {
  int status;
  std::string report;
};

/// Runs one job per script, in which rank 1 runs the script and rank 0 waits. Returns the results.
std::vector<Ended> run_all(const std::vector<std::string>& scripts) {
  std::vector<Ended> ended;
  for (std::size_t first = 0; first < scripts.size(); first += kAtOnce) {
    std::vector<std::unique_ptr<Program>> jobs;
    for (std::size_t i = first; i < std::min(first + kAtOnce, scripts.size()); ++i) {
      jobs.push_back(std::make_unique<Program>(
          acclaunch({"--cpu", "--num_processes", "2", "--main_process_port", "0"},
                    "[ $RANK = 1 ] || exec sleep 1000\nulimit -c 0\n" + scripts[i])));
    }
    for (const auto& job : jobs) {
      const int status = job->wait();
      ended.push_back({status, job->err()});
    }
  }
  return ended;
}

/// Signals 32 and 33 are reserved by the C library; a program started by posix_spawn ignores them.
bool is_fatal(int signal) {
  constexpr int kOthers[] = {SIGCHLD, SIGCONT, SIGSTOP,  SIGTSTP, SIGTTIN,
                             SIGTTOU, SIGURG,  SIGWINCH, 32,      33};
  return std::ranges::count(kOthers, signal) == 0;
}

}  // namespace

TEST_CASE("worker ends: each exit code becomes the launcher's, and is in the report") {
  std::vector<std::string> scripts;
  for (int code = 1; code < 256; ++code) {
    scripts.push_back("exit " + std::to_string(code));
  }
  const std::vector<Ended> ended = run_all(scripts);
  for (std::size_t i = 0; i < ended.size(); ++i) {
    const int code = static_cast<int>(i) + 1;
    CAPTURE(code);
    CHECK(ended[i].status == code);
    CHECK(contains(ended[i].report, "rank 1: exited with code " + std::to_string(code) + "\n"));
    CHECK(contains(ended[i].report, "rank 0: ended by acclaunch, killed by SIGTERM (signal 15)\n"));
  }
}

TEST_CASE("worker ends: each fatal signal n becomes status 128 + n, and is in the report") {
  std::vector<int> signals;
  std::vector<std::string> scripts;
  for (int signal = 1; signal <= 64; ++signal) {
    if (is_fatal(signal)) {
      signals.push_back(signal);
      scripts.push_back("kill -" + std::to_string(signal) + " $$");
    }
  }
  const std::vector<Ended> ended = run_all(scripts);
  for (std::size_t i = 0; i < ended.size(); ++i) {
    const int signal = signals[i];
    CAPTURE(signal);
    CHECK(ended[i].status == 128 + signal);
    const char* name = ::sigabbrev_np(signal);
    const std::string number = "signal " + std::to_string(signal);
    const std::string end =
        name == nullptr ? number : std::string("SIG") + name + " (" + number + ")";
    CHECK(contains(ended[i].report, "rank 1: killed by " + end));
  }
}

TEST_CASE("worker ends: a job stopped by signal n has status 128 + n for any worker status") {
  struct Answer {
    std::string what;
    std::string script;
    std::string shutdown_timeout;
  };
  const Answer kAnswers[] = {
      {"default action", "", "1000"},
      {"success", "trap 'exit 0' TERM INT HUP QUIT", "1000"},
      {"another exit code", "trap 'exit 7' TERM INT HUP QUIT", "1000"},
      {"another signal", "trap 'kill -9 $$' TERM INT HUP QUIT", "1000"},
      {"one succeeds, one fails", "trap 'exit $RANK' TERM INT HUP QUIT", "1000"},
      {"ignores it", "trap '' TERM INT HUP QUIT", "0"},
  };
  for (const Answer& answer : kAnswers) {
    for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) {
      CAPTURE(answer.what);
      CAPTURE(signal);
      const JobPlace place;
      Program job(acclaunch({"--cpu", "--num_processes", "2", "--main_process_port", place.port(),
                             "--shutdown_timeout", answer.shutdown_timeout},
                            "ulimit -c 0\n" + answer.script +
                                "\necho worker-up; while :; do sleep 1000 & wait; done"),
                  {{"TMPDIR", place.folder()}});
      job.wait_for_text("worker-up", 2);
      job.signal(signal);
      CHECK(job.wait() == 128 + signal);
      CHECK(place.left(job) == "nothing");
    }
  }
}

TEST_CASE("worker ends: a second stop signal kills those that ignore the first") {
  for (const int second : {SIGTERM, SIGINT, SIGQUIT}) {
    CAPTURE(second);
    const JobPlace place;
    Program job(acclaunch({"--cpu", "--num_processes", "2", "--main_process_port", place.port(),
                           "--shutdown_timeout", "1000"},
                          "trap '' TERM INT QUIT; echo worker-up; while :; do sleep 1000; done"),
                {{"TMPDIR", place.folder()}});
    job.wait_for_text("worker-up", 2);
    job.signal(SIGTERM);
    job.wait_for_text("SIGTERM: ending the workers");
    job.signal(second);
    CHECK(job.wait() == 128 + SIGTERM);
    CHECK(place.left(job) == "nothing");
  }
}

TEST_CASE("worker ends: workers that ignore SIGTERM after a failure are killed") {
  const JobPlace place;
  Program job(acclaunch({"--cpu", "--num_processes", "2", "--main_process_port", place.port(),
                         "--shutdown_timeout", "0"},
                        // Rank 1 fails when rank 0 ignores the signal.
                        "ready=$TMPDIR/ready; if [ $RANK = 1 ]; then until [ -e $ready ]; do "
                        "sleep 0.01; done; rm $ready; exit 5; fi; "
                        "trap '' TERM; : > $ready; while :; do sleep 1000; done"),
              {{"TMPDIR", place.folder()}});
  CHECK(job.wait() == 5);
  CAPTURE(job.err());
  CHECK(contains(job.err(), "rank 0: ended by acclaunch, killed by SIGKILL"));
  CHECK(place.left(job) == "nothing");
}
