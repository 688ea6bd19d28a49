// SPDX-License-Identifier: Apache-2.0
// Destinations of the workers' output: log folders, redirection, tee and filters.
#include "support/machines.hpp"
#include "support/program.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <csignal>
#include <filesystem>
#include <map>

using namespace acc::test;

namespace {

namespace fs = std::filesystem;
using Files = std::map<std::string, std::string>;

/// Returns the text of every file below `folder`, by its path relative to the folder of the run.
/// Links are left out.
Files files_below(const fs::path& folder) {
  Files files;
  for (const auto& run : fs::directory_iterator(folder)) {
    for (const auto& file : fs::recursive_directory_iterator(run.path())) {
      if (file.is_regular_file()) {
        files[fs::relative(file.path(), run.path()).string()] = file_text(file.path().string());
      }
    }
  }
  return files;
}

constexpr const char* kSpeak = "echo out $RANK; echo err $RANK >&2";

}  // namespace

TEST_CASE("log files: a stream goes to its file, to the console, or to both") {
  TemporaryFolder folder;
  Program job(torchrun(
      {"--nproc-per-node", "3", "-r", "0:3,1:1", "-t", "2:3", "--log-dir", folder.path().string()},
      kSpeak));
  CHECK(job.wait() == 0);
  CHECK(files_below(folder.path()) == Files{{"attempt_0/0/stdout.log", "out 0\n"},
                                            {"attempt_0/0/stderr.log", "err 0\n"},
                                            {"attempt_0/1/stdout.log", "out 1\n"},
                                            {"attempt_0/2/stdout.log", "out 2\n"},
                                            {"attempt_0/2/stderr.log", "err 2\n"}});
  CHECK(job.out() == "[2] out 2\n");
  CHECK(contains(job.err(), "[1] err 1\n"));
  CHECK(contains(job.err(), "[2] err 2\n"));
  CHECK_FALSE(contains(job.err(), "err 0"));
}

TEST_CASE("log files: machines that share a folder name themselves and the ranks of the job") {
  TemporaryFolder folder;
  const ReservedPort port;
  const std::string host = prefix(0).substr(1, prefix(0).find(' ') - 1);
  std::vector<std::unique_ptr<Program>> jobs;
  for (const std::size_t machine : {0U, 1U}) {
    auto flags = static_flags(machine, port);
    flags.insert(flags.end(),
                 {"--nproc-per-node", "2", "-r", "3", "--log-dir", folder.path().string()});
    jobs.push_back(std::make_unique<Program>(torchrun(flags, kSpeak)));
  }
  for (const auto& job : jobs) {
    CHECK(job->wait() == 0);
  }
  std::map<std::string, std::string> by_rank;
  for (const auto& run : fs::directory_iterator(folder.path())) {
    CHECK(contains(run.path().filename().string(), "_" + host + "_"));
    for (const auto& link : fs::directory_iterator(run.path() / "attempt_0")) {
      if (link.is_symlink()) {
        by_rank[link.path().filename().string()] = file_text((link.path() / "stdout.log").string());
      }
    }
  }
  CHECK(by_rank == Files{{"rank_0", "out 0\n"},
                         {"rank_1", "out 1\n"},
                         {"rank_2", "out 2\n"},
                         {"rank_3", "out 3\n"}});
}

TEST_CASE("log files: lines that match the filter also go to a file of all ranks") {
  TemporaryFolder folder;
  Program job(
      torchrun({"--nproc-per-node", "2", "-t", "1", "--duplicate-stdout-filters", "loss,a,,b",
                "--duplicate-stderr-filters", "x", "--log-dir", folder.path().string()},
               "echo loss $RANK; echo other; echo a,b; echo x >&2"));
  CHECK(job.wait() == 0);
  const Files files = files_below(folder.path());
  REQUIRE(files.contains("attempt_0/filtered_stdout.log"));
  const std::string& filtered = files.at("attempt_0/filtered_stdout.log");
  for (const char* line : {"[0] loss 0\n", "[1] loss 1\n", "[0] a,b\n", "[1] a,b\n"}) {
    CHECK(contains(filtered, line));
  }
  CHECK_FALSE(contains(filtered, "other"));
  CHECK_FALSE(files.contains("attempt_0/filtered_stderr.log"));  // --tee does not include stderr
}

TEST_CASE("log files: each attempt has its own files") {
  TemporaryFolder folder;
  Program job(torchrun({"-r", "3", "--max-restarts", "1", "--log-dir", folder.path().string()},
                       "echo in $TORCHELASTIC_RESTART_COUNT; exit $((1 - "
                       "TORCHELASTIC_RESTART_COUNT))"));
  CHECK(job.wait() == 0);
  Files files = files_below(folder.path());
  CHECK(contains(files["attempt_0/report.json"], "\"restarts_after_ms\": 0"));
  files.erase("attempt_0/report.json");
  CHECK(files == Files{{"attempt_0/0/stdout.log", "in 0\n"},
                       {"attempt_0/0/stderr.log", ""},
                       {"attempt_1/0/stdout.log", "in 1\n"},
                       {"attempt_1/0/stderr.log", ""}});
}

TEST_CASE("log files: the report has the last lines of a redirected stderr") {
  TemporaryFolder folder;
  Program job(
      torchrun({"--nproc-per-node", "2", "-r", "2", "--log-dir", folder.path().string()},
               "[ $RANK = 0 ] && exec sleep 1000\n"
               "i=0; while [ $i -lt 30000 ]; do echo line $i >&2; i=$((i+1)); done; exit 3"));
  CHECK(job.wait() == 3);
  CHECK(contains(job.err(), "    | line 29980\n"));
  CHECK(contains(job.err(), "    | line 29999\n"));
  CHECK_FALSE(contains(job.err(), "line 29979\n"));
}

TEST_CASE("log files: ranks that the filter excludes are not on the console") {
  Program job(torchrun({"--nproc-per-node", "3", "--local-ranks-filter", "1"}, kSpeak));
  CHECK(job.wait() == 0);
  CHECK(job.out() == "[1] out 1\n");
  CHECK(contains(job.err(), "[1] err 1\n"));
  CHECK_FALSE(contains(job.err(), "err 0"));
}

TEST_CASE("log files: without --log_dir the launcher prints the folder") {
  TemporaryFolder folder;
  Program job(torchrun({"-t", "3"}, kSpeak), {{"TMPDIR", folder.path().string()}});
  CHECK(job.wait() == 0);
  std::string place;
  for (const auto& file : fs::recursive_directory_iterator(folder.path())) {
    place = file.path().filename() == "attempt_0" ? file.path().parent_path().string() : place;
  }
  CHECK(contains(job.err(), "the workers' files are in " + place + "\n"));
  const auto mode = [](const fs::path& path) {
    return fs::status(path).permissions() & fs::perms::mask;
  };
  CHECK(mode(fs::path(place).parent_path()) == fs::perms::owner_all);
  for (const char* name : {"/attempt_0/0/stdout.log", "/attempt_0/0/stderr.log"}) {
    CHECK(mode(place + name) == (fs::perms::owner_read | fs::perms::owner_write));
  }
}

TEST_CASE("log files: other users cannot read the temporary folder") {
  TemporaryFolder folder;
  Program job(
      torchrun({"--nproc-per-node", "2"}, "stat -c %a $TMPDIR/acclaunch_*; exec sleep 1000"),
      {{"TMPDIR", folder.path().string()}});
  job.wait_for_text("700\n", 2);
  job.signal(SIGTERM);
  CHECK(job.wait() == 128 + SIGTERM);
  CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("log files: a job whose rendezvous fails leaves no folder") {
  const TemporaryFolder folder;
  const ReservedPort port;
  port.listen();
  Program job(
      torchrun({"-r", "3", "--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1",
                "--master-port", port.text(), "--log-dir", folder.path().string()},
               "echo started"));
  CHECK(job.wait() == 2);
  CHECK(contains(job.err(), port.text()));
  CHECK(fs::is_empty(folder.path()));
}
