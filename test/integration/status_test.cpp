// SPDX-License-Identifier: Apache-2.0
// acclaunch status and acclaunch stacks look into a job that hangs.
#include "support/program.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <sstream>

using acc::test::contains;
using acc::test::Program;
using nlohmann::json;
using Words = std::vector<std::string>;

namespace {

constexpr const char* kAcclaunch = ACC_BIN_DIR "/acclaunch";
constexpr const char* kProbe = ACC_BIN_DIR "/root_cause_probe";

/// A job of three ranks. Rank 1 hangs, and the others wait for it in a collective.
struct HangingJob {
  Program program{{kAcclaunch, "--cpu", "--num_processes", "3", "--shutdown_timeout", "0", kProbe,
                   "1", "hangs"}};
  json status;

  HangingJob() {
    program.wait_for_text("rank 1 hangs");
    const auto deadline = std::chrono::steady_clock::now() + acc::test::kDeadline;
    while (std::chrono::steady_clock::now() < deadline) {
      Program look({kAcclaunch, "status", "--json", pid()});
      REQUIRE_MESSAGE(look.wait() == 0, look.err());
      status = json::parse(look.out()).at(0);
      if (!status.at("late").empty() && status.at("late")[0].at("waiting_ranks").size() == 2 &&
          !status.at("slowest_rank").is_null()) {
        return;
      }
    }
    FAIL("no rank waits: ", status.dump(2));
  }
  [[nodiscard]] std::string pid() const { return std::to_string(program.pid()); }
};

/// Runs `acclaunch` with folders of programs in which a debugger is a script.
Program with_path(Words words, const std::filesystem::path& folder) {
  words.insert(words.begin(), kAcclaunch);
  return Program(words, {{"PATH", folder.string()}});
}

void write_script(const std::filesystem::path& path, const std::string& text) {
  acc::test::write_text(path, "#!/bin/sh\n" + text + "\n");
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
}

}  // namespace

TEST_CASE("acclaunch status names the rank that the others wait for") {
  const HangingJob job;
  CHECK(job.status.at("launcher_pid") == job.program.pid());
  CHECK(contains(job.status.at("command"), "root_cause_probe 1 hangs"));
  REQUIRE(job.status.at("ranks").size() == 3);
  for (int rank = 0; rank < 3; ++rank) {
    const json& each = job.status.at("ranks")[static_cast<std::size_t>(rank)];
    CHECK(each.at("rank") == rank);
    CHECK(each.at("program") == "root_cause_probe");
    CHECK(each.at("flight").is_object());
  }
  CHECK(job.status.at("late")[0].at("ranks") == json::array({1}));
  CHECK(job.status.at("slowest_rank") == 1);

  Program text({kAcclaunch, "status", job.pid()});
  CHECK(text.wait() == 0);
  CAPTURE(text.out());
  CHECK(text.out().starts_with("job " + job.pid() + ", running for "));
  CHECK(contains(text.out(), "rank 1 did not enter "));
  CHECK(contains(text.out(), "in which ranks 0,2 waited for "));
  CHECK(contains(text.out(), "  slowest   rank 1: others wait for it\n"));
  CHECK(contains(text.out(), ", for "));  // in the column "waits in"
  Program all({kAcclaunch, "status"});
  CHECK(all.wait() == 0);
  CHECK(contains(all.out(), "job " + job.pid() + ", "));
}

TEST_CASE("acclaunch stacks runs the debuggers that are installed on each worker") {
  const HangingJob job;
  const acc::test::TemporaryFolder folder;

  Program none = with_path({"stacks", job.pid()}, folder.path());
  CHECK(none.wait() == 2);
  CHECK(contains(none.err(), "stacks: install gdb, eu-stack (elfutils) or, for Python, py-spy"));

  write_script(folder.path() / "eu-stack", "echo frames of $2");
  Program all = with_path({"stacks", job.pid()}, folder.path());
  CHECK(all.wait() == 0);
  for (const json& rank : job.status.at("ranks")) {
    const auto pid = std::to_string(rank.at("pid").get<int>());
    CHECK(contains(all.out(), "== job " + job.pid() + ", rank " +
                                  std::to_string(rank.at("rank").get<int>()) + ", process " + pid +
                                  " (root_cause_probe), "));
    CHECK(contains(all.out(), "frames of " + pid + "\n"));
  }

  write_script(folder.path() / "gdb", "exit 1");  // preferred to eu-stack
  Program refused = with_path({"stacks", job.pid(), "--rank", "1"}, folder.path());
  CHECK(refused.wait() == 0);
  CHECK(contains(refused.out(), "gdb could not read the stack of process "));
  CHECK_FALSE(contains(refused.out(), "rank 0"));

  Program no_rank = with_path({"stacks", job.pid(), "--rank", "7"}, folder.path());
  CHECK(no_rank.wait() == 2);
  CHECK(contains(no_rank.err(), "stacks: no rank 7 on this machine"));
}

TEST_CASE("acclaunch stacks reads eight stacks at a time") {
  Program job({kAcclaunch, "--cpu", "--num_processes", "9", "/bin/sh", "-c",
               "echo \"ready $RANK\"; exec sleep 100000"});
  for (int rank = 0; rank < 9; ++rank) {
    job.wait_for_text("ready " + std::to_string(rank));
  }
  const acc::test::TemporaryFolder folder;
  // The first reader ends a second after the seven others that may run beside it.
  write_script(folder.path() / "eu-stack", "cd " + folder.path().string() + R"(; PATH=/usr/bin:/bin
echo begin >> log
if mkdir first 2> /dev/null; then
  until [ $(grep -c end log) -ge 7 ]; do sleep 0.05; done
  sleep 1
  echo first >> log
fi
echo end >> log; echo frames)");
  Program all = with_path({"stacks", std::to_string(job.pid())}, folder.path());
  CHECK(all.wait() == 0);
  const std::string log = acc::test::file_text(folder.path() / "log");
  std::istringstream lines(log.substr(0, log.find("first")));
  using Lines = std::istream_iterator<std::string>;
  CHECK_MESSAGE(std::count(Lines(lines), Lines(), "begin") == 8, log);
}

TEST_CASE("acclaunch status and stacks refuse what is no job") {
  struct Case {
    const char* job;
    const char* message;
  };
  for (const auto& [job, message] :
       {Case{"1", "has workers and the process ID, run ID or Slurm job ID \"1\"\n"},
        Case{"run-7", "has workers and the process ID, run ID or Slurm job ID \"run-7\"\n"}}) {
    for (const char* command : {"status", "stacks"}) {
      Program look({kAcclaunch, command, job});
      CHECK(look.wait() == 2);
      CHECK(contains(look.err(), message));
    }
  }
}
