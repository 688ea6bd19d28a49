#include "report/error_file.hpp"
#include "report/job_report.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

using namespace acc::launcher;
using Kind = ProcessEnd::Kind;

namespace {

WorkerReport worker(int rank, ProcessEnd end, bool told_to_end) {
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

TEST_CASE("the report names everything about the failure") {
  ::setenv("TZ", "UTC", 1);
  JobReport report;
  report.command = {"./train", "--steps", "10"};
  report.workers = {worker(4, {Kind::killed, 15}, true), worker(5, {Kind::killed, 9}, false),
                    worker(6, {Kind::exited, 0}, false), worker(7, {Kind::killed, 15}, true)};
  report.workers[1].error_message = "ValueError: bad batch\nsecond line";
  report.workers[1].last_stderr_lines = {"step 1", "out of luck"};
  report.first_failure = first_failure(report.workers);
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
            "  the other workers:\n"
            "    ranks 4, 7: ended by acclaunch, killed by SIGTERM (signal 15)\n"
            "    rank 6: exited with code 0\n" +
            rule + "\n");
}

TEST_CASE("the line at the moment of the failure") {
  WorkerRecord record;
  record.rank = 5;
  record.pid = 4705;
  record.end = ProcessEnd{Kind::exited, 3};
  CHECK(failure_line(record, "node1") == "rank 5 (pid 4705 on node1): exited with code 3");
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
  CHECK(read_error_file(path).message.empty());  // not written
  CHECK(read_error_file("").message.empty());
  for (const auto& [text, message] : cases) {
    std::ofstream(path) << text;
    CHECK(read_error_file(path).message == message);
  }
  for (const char* bad : {"{", "[]", R"({"message": 3})", "\xff\xfe"}) {
    std::ofstream(path) << bad;
    CHECK(read_error_file(path).message ==
          "(" + path + " is not an error file as PyTorch writes it)");
  }
  std::filesystem::remove_all(folder);
}

TEST_CASE("the report of a job that may restart names the attempt") {
  JobReport report;
  report.workers = {worker(5, {Kind::exited, 3}, false)};
  report.first_failure = 0;
  report.attempt = 1;
  report.max_restarts = 2;
  report.restarts_after = std::chrono::milliseconds(0);
  const std::string text = format_report(report);
  CHECK(text.find("acclaunch: attempt 1 failed: rank 5: exited with code 3\n") !=
        std::string::npos);
  CHECK(text.find("  attempt   1, of 0 to 2\n") != std::string::npos);
  report.restarts_after.reset();
  CHECK(format_report(report).find("acclaunch: the job failed: rank 5") != std::string::npos);
}
