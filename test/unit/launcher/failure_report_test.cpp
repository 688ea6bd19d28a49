#include "supervision/failure_report.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

using namespace acc::launcher;
using Kind = ProcessEnd::Kind;

namespace {

WorkerRecord record(int rank, ProcessEnd end, bool told_to_end) {
  WorkerRecord worker;
  worker.rank = rank;
  worker.local_rank = rank - 4;
  worker.pid = 4700 + rank;
  worker.end = end;
  worker.ended_at = std::chrono::system_clock::time_point(std::chrono::milliseconds(1'500'000'123));
  worker.told_to_end = told_to_end;
  return worker;
}

}  // namespace

TEST_CASE("the report names everything about the failure") {
  ::setenv("TZ", "UTC", 1);
  FailureReport report;
  report.command = {"./train", "--steps", "10"};
  report.host = "node1";
  report.worker = record(5, {Kind::killed, 9}, false);
  report.ran_for = std::chrono::milliseconds(12'345);
  report.error_message = "ValueError: bad batch\nsecond line";
  report.last_stderr_lines = {"step 1", "out of luck"};
  report.others = {record(4, {Kind::killed, 15}, true), record(6, {Kind::exited, 0}, false),
                   record(7, {Kind::killed, 15}, true)};
  const std::string rule(72, '=');
  CHECK(format_report(report) ==
        rule +
            "\n"
            "acclaunch: the job failed: rank 5: killed by SIGKILL (signal 9)\n"
            "  command   ./train --steps 10\n"
            "  rank      5 (local rank 1)\n"
            "  host      node1\n"
            "  pid       4705\n"
            "  time      1970-01-18 08:40:00.123, 12.345 s after the start\n"
            "  its error file says:\n"
            "    | ValueError: bad batch\n"
            "    | second line\n"
            "  its last lines on stderr:\n"
            "    | step 1\n"
            "    | out of luck\n"
            "  the other workers on this machine:\n"
            "    ranks 4, 7: ended by acclaunch, killed by SIGTERM (signal 15)\n"
            "    rank 6: exited with code 0\n" +
            rule + "\n");
}

TEST_CASE("the line at the moment of the failure") {
  CHECK(failure_line(record(5, {Kind::exited, 3}, false), "node1") ==
        "rank 5 (pid 4705 on node1): exited with code 3");
}

TEST_CASE("error files: what is read from them") {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"message": {"message": "RuntimeError: no", "extraInfo": {"timestamp": "1"}}})",
       "RuntimeError: no"},
      {R"({"message": "plain", "timestamp": 1})", "plain"},
      {"", ""},
  };
  std::string folder = std::filesystem::temp_directory_path() / "acc_error_file_XXXXXX";
  REQUIRE(::mkdtemp(folder.data()) != nullptr);
  const std::string path = folder + "/error.json";
  CHECK(error_file_message(path).empty());  // not written
  CHECK(error_file_message("").empty());
  for (const auto& [text, message] : cases) {
    std::ofstream(path) << text;
    CHECK(error_file_message(path) == message);
  }
  for (const char* bad : {"{", "[]", R"({"message": 3})", "\xff\xfe"}) {
    std::ofstream(path) << bad;
    CHECK(error_file_message(path) == "(" + path + " is not an error file as PyTorch writes it)");
  }
  std::filesystem::remove_all(folder);
}

TEST_CASE("the report of a job that may restart names the attempt") {
  FailureReport report;
  report.worker = record(5, {Kind::exited, 3}, false);
  report.attempt = 1;
  report.max_restarts = 2;
  report.restarts = true;
  const std::string text = format_report(report);
  CHECK(text.find("acclaunch: attempt 1 failed: rank 5: exited with code 3\n") !=
        std::string::npos);
  CHECK(text.find("  attempt   1, of 0 to 2\n") != std::string::npos);
  report.restarts = false;
  CHECK(format_report(report).find("acclaunch: the job failed: rank 5") != std::string::npos);
}
