// SPDX-License-Identifier: Apache-2.0
#include "report/job_report.hpp"
#include "report/words.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>

using namespace acc::launcher;
using Kind = supervision::ProcessEnd::Kind;

namespace {

report::WorkerReport worker(int rank, supervision::ProcessEnd end, bool told_to_end) {
  return {.rank = rank,
          .local_rank = rank - 4,
          .host = "node1",
          .pid = 4700 + rank,
          .end = end,
          .told_to_end = told_to_end,
          .ended_at = std::chrono::system_clock::time_point(std::chrono::seconds(1'500'000)) +
                      std::chrono::milliseconds(123),
          .ran_for = std::chrono::milliseconds(12'345)};
}

}  // namespace

TEST_CASE("the report has all facts about the failure") {
  ::setenv("TZ", "UTC", 1);
  report::JobReport report;
  report.command = {"./train", "--steps", "10"};
  report.workers = {worker(4, {Kind::killed, 15}, true), worker(5, {Kind::killed, 9}, false),
                    worker(6, {Kind::exited, 0}, false), worker(7, {Kind::killed, 15}, true)};
  report.workers[1].error_message = "ValueError: bad batch\nsecond line";
  report.workers[1].last_stderr_lines = {"step 1", "out of luck"};
  report.first_failure = report::first_failure(report.workers);
  report.exit_status = 137;
  const std::string rule(72, '=');
  CHECK(report::format_report(report) ==
        rule +
            "\n"
            "acclaunch: the job failed: rank 5: killed by SIGKILL (signal 9)\n"
            "  command   ./train --steps 10\n"
            "  rank      5 (local rank 1)\n"
            "  host      node1\n"
            "  pid       4705\n"
            "  time      1970-01-18 08:40:00.123, 12.35 s after the start\n"
            "  error     ValueError: bad batch\n"
            "            second line\n"
            "  its last lines on stderr:\n"
            "    | step 1\n"
            "    | out of luck\n"
            "  the other workers:\n"
            "    ranks 4,7: ended by acclaunch, killed by SIGTERM (signal 15)\n"
            "    rank 6: exited with code 0\n"
            "  then      the job ends with exit status 137\n" +
            rule + "\n");
}

TEST_CASE("the line that is printed immediately after a failure") {
  supervision::WorkerRecord record;
  record.rank = 5;
  record.pid = 4705;
  record.end = supervision::ProcessEnd{Kind::exited, 3};
  CHECK(report::failure_line(record, "node1") == "rank 5 (pid 4705 on node1): exited with code 3");
}

TEST_CASE("the report of a job that may restart names the attempt") {
  report::JobReport report;
  report.workers = {worker(5, {Kind::exited, 3}, false)};
  report.first_failure = 0;
  report.attempt = 1;
  report.max_restarts = 2;
  report.restarts_after = std::chrono::milliseconds(0);
  const std::string text = report::format_report(report);
  CHECK(text.find("acclaunch: attempt 1 failed: rank 5: exited with code 3\n") !=
        std::string::npos);
  CHECK(text.find("  attempt   1, of 0 to 2\n") != std::string::npos);
  report.restarts_after.reset();
  CHECK(report::format_report(report).find("acclaunch: the job failed: rank 5") !=
        std::string::npos);
}

namespace {

report::WorkerReport on_machine(int machine, int rank, supervision::ProcessEnd end,
                                bool told_to_end) {
  report::WorkerReport report = worker(rank, end, told_to_end);
  report.machine_rank = machine;
  report.host = "node" + std::to_string(machine);
  return report;
}

std::string from(const std::string& text, std::string_view mark) {
  const std::size_t at = text.find(mark);
  REQUIRE_MESSAGE(at != std::string::npos, text);
  return text.substr(at);
}

}  // namespace

TEST_CASE("the report of several machines: failures with times, other ends, missing reports") {
  report::JobReport report;
  for (int machine = 0; machine < 3; ++machine) {
    for (int rank = 4 * machine; rank < 4 * machine + 4; ++rank) {
      report.workers.push_back(on_machine(machine, rank, {Kind::killed, 15}, true));
    }
  }
  report.workers[1] = on_machine(0, 1, {Kind::exited, 1}, false);
  report.workers[1].moment = std::chrono::microseconds(2'500'000);
  report.workers[1].error_message = "RuntimeError: Connection closed by peer\nand more";
  report.workers[5] = on_machine(1, 5, {Kind::killed, 9}, false);
  report.workers[5].moment = std::chrono::microseconds(999'200);
  report.workers[6] = on_machine(1, 6, {Kind::killed, 11, true}, false);
  report.workers[6].moment = std::chrono::microseconds(1'000'000);
  report.workers[8].end.reset();
  report.workers[8].cause = "in uninterruptible sleep (nfs_wait_bit)";
  report.workers[11] = on_machine(2, 11, {Kind::exited, 0}, false);
  report.first_failure = report::first_failure(report.workers);
  report.silent_machines = {"machine 3 (node3)"};
  report.max_restarts = 3;
  report.restarts_after = std::chrono::seconds(2);
  report.log_folder = "/logs/run/attempt_0";
  report.report_file = "/logs/run/attempt_0/report.json";
  const std::string text = report::format_report(report);
  CHECK(text.find("attempt 0 failed: rank 5: killed by SIGKILL (signal 9)\n") != std::string::npos);
  CHECK(text.find("  host      node1 (machine 1)\n") != std::string::npos);
  CHECK(from(text, "  other failures") ==
        "  other failures:\n"
        "        0.8 ms later, rank 6 (pid 4706 on node1): killed by SIGSEGV (signal 11), core "
        "dumped\n"
        "       1.501 s later, rank 1 (pid 4701 on node0): exited with code 1: RuntimeError: "
        "Connection closed by peer\n"
        "  still there:\n"
        "    rank 8 (pid 4708 on node2): could not be killed and is still there: in "
        "uninterruptible sleep (nfs_wait_bit)\n"
        "  the other workers:\n"
        "    machines 0-1\n"
        "      ranks 0,2-4,7: ended by acclaunch, killed by SIGTERM (signal 15)\n"
        "    machine 2 (node2)\n"
        "      ranks 9-10: ended by acclaunch, killed by SIGTERM (signal 15)\n"
        "      rank 11: exited with code 0\n"
        "  machine 3 (node3) did not report how its workers ended\n"
        "  then      restart 1 of 3 in 2 s\n"
        "  logs      /logs/run/attempt_0\n"
        "  report    /logs/run/attempt_0/report.json\n" +
            std::string(72, '=') + "\n");
}

TEST_CASE("the report if no worker caused the failure") {
  report::JobReport report;
  report.reason = "machine 1 (node2) is gone: its connection was closed";
  report.workers = {worker(4, {Kind::killed, 15}, true), worker(5, {Kind::exited, 1}, false)};
  const std::string text = report::format_report(report);
  CHECK(text.find("the job failed: machine 1 (node2) is gone: its connection was closed\n") !=
        std::string::npos);
  CHECK(text.find("  rank  ") == std::string::npos);
  CHECK(text.find("  failures:\n          0 ms later, rank 5 ") != std::string::npos);
  CHECK(text.find("  the workers:\n    rank 4: ended by acclaunch") != std::string::npos);
}

TEST_CASE("the traceback is not shown if it is among the last lines of stderr") {
  report::JobReport report;
  report.workers = {worker(4, {Kind::exited, 1}, false)};
  report.first_failure = 0;
  report.workers[0].traceback = {"Traceback (most recent call last):", "ValueError: bad"};
  report.workers[0].last_stderr_lines = {"step 1"};
  const std::string shown =
      "  traceback, from its error file:\n"
      "    | Traceback (most recent call last):\n"
      "    | ValueError: bad\n";
  CHECK(report::format_report(report).find(shown) != std::string::npos);
  report.workers[0].last_stderr_lines = {"ValueError: bad", "step 1"};
  CHECK(report::format_report(report).find("traceback") == std::string::npos);
}

TEST_CASE("control characters and line breaks in worker output are escaped in the report") {
  report::JobReport report;
  report.command = {"sh", "-c", "echo 'a b'\nexit 3"};
  report.workers = {worker(4, {Kind::exited, 1}, false)};
  report.first_failure = 0;
  report.workers[0].error_message = "\x1b[2Jgone\n  rank      9\n";
  report.workers[0].last_stderr_lines = {"\x1b]0;title\x07", "a\n  pid       1", "\xff\xfe"};
  const std::string text = report::format_report(report);
  CHECK(text.find('\x1b') == std::string::npos);
  CHECK(text.find("  command   sh -c 'echo '\\''a b'\\''\n            exit 3'\n") !=
        std::string::npos);
  CHECK(text.find("  error     \\x1b[2Jgone\n              rank      9\n") != std::string::npos);
  CHECK(text.find("    | \\x1b]0;title\\x07\n    | a   pid       1\n    | \\xff\\xfe\n") !=
        std::string::npos);
}

TEST_CASE("the report of a thousand failures has a limited number of lines") {
  report::JobReport report;
  for (int rank = 0; rank < 1000; ++rank) {
    report.workers.push_back(worker(rank, {Kind::exited, 1}, false));
    report.workers.back().moment = std::chrono::microseconds(rank);
  }
  report.first_failure = 0;
  const std::string text = report::format_report(report);
  CHECK(text.find("    and 983 more: ranks 17-999\n") != std::string::npos);
  CHECK(std::ranges::count(text, '\n') < 32);
}

TEST_CASE("durations are formatted with suitable units") {
  using std::chrono::microseconds;
  const std::pair<std::int64_t, const char*> cases[] = {{0, "0 ms"},
                                                        {800, "0.8 ms"},
                                                        {12'345'000, "12.35 s"},
                                                        {184'000'000, "3 min 4 s"},
                                                        {93'780'000'000, "26 h 3 min"}};
  for (const auto& [time, words] : cases) {
    CHECK(report::time_span(microseconds(time)) == words);
  }
}
