// SPDX-License-Identifier: Apache-2.0
// Errors before a job starts: each gives a clear message and status, starts nothing and leaves
// nothing behind.
#include "support/acclaunch.hpp"
#include "support/left_behind.hpp"
#include "support/machines.hpp"
#include "support/program.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>

using namespace acc::test;

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

/// Creates a file with this text and these permissions.
std::string file_in(const TemporaryFolder& folder, const std::string& name, const std::string& text,
                    fs::perms permissions) {
  const fs::path path = folder.path() / name;
  std::ofstream(path) << text;
  fs::permissions(path, permissions);
  return path.string();
}

struct Refusal {
  std::string what;
  Words command;
  int status;
  std::string message;
};

void check(const Refusal& refusal) {
  CAPTURE(refusal.what);
  const JobPlace place;
  Program job(refusal.command, {{"TMPDIR", place.folder()}});
  CHECK(job.wait() == refusal.status);
  CHECK(contains(job.err(), refusal.message));
  CHECK_FALSE(contains(job.err(), "internal error"));
  CHECK_FALSE(contains(job.err(), "restart 1"));
  CHECK(job.out().empty());
  CHECK(place.left(job) == "nothing");
}

/// Starts `command` in a mount namespace in which a small file system is mounted on `folder`.
Words with_small_disk(const std::string& folder, const std::string& options, Words command) {
  Words all = {"/usr/bin/unshare",
               "--mount",
               "/bin/sh",
               "-c",
               "mount -t tmpfs -o " + options + " none " + folder + " && exec \"$@\"",
               "sh"};
  all.insert(all.end(), command.begin(), command.end());
  return all;
}

bool can_mount() {
  const TemporaryFolder folder;
  Program probe(with_small_disk(folder.path().string(), "size=64k", {"/bin/true"}));
  return probe.wait() == 0;
}

}  // namespace

TEST_CASE("bad start: a program that cannot be executed gives status 127 or 126") {
  const TemporaryFolder folder;
  const std::string script = file_in(folder, "script", "#!/no/such/interpreter\n", fs::perms::all);
  const std::string no_permission =
      file_in(folder, "no_permission", "#!/bin/sh\n", fs::perms::owner_read);
  const std::string no_format = file_in(folder, "no_format", "no interpreter\n", fs::perms::all);
  const Refusal programs[] = {
      {"missing, to be found", {"no_such_program_anywhere"}, 127, "no_such_program_anywhere"},
      {"missing, by path", {"/no/such/program"}, 127, "/no/such/program"},
      {"a folder", {folder.path().string()}, 126, folder.path().string()},
      {"below a file", {script + "/program"}, 127, script},
      {"without its interpreter", {script}, 126, "/no/such/interpreter"},
      {"without permission", {no_permission}, 126, no_permission},
      {"of no format", {no_format}, 126, "Exec format error"},
  };
  for (const Refusal& program : programs) {
    for (const Words& front_end :
         {Words{"launch", "--cpu", "--num_processes", "2", "--max_restarts", "3", "--no_python"},
          Words{"torchrun", "--nproc-per-node=2", "--max-restarts=3", "--no-python"}}) {
      Refusal refusal = program;
      refusal.what += ", " + front_end.front();
      refusal.command = {ACC_BIN_DIR "/acclaunch"};
      refusal.command.insert(refusal.command.end(), front_end.begin(), front_end.end());
      refusal.command.push_back(program.command.front());
      check(refusal);
    }
  }
}

TEST_CASE("bad start: a log folder that cannot be created") {
  const TemporaryFolder folder;
  const std::string file = file_in(folder, "file", "", fs::perms::all);
  for (const std::string& place : {file, file + "/logs", std::string("/proc/logs")}) {
    check({place, torchrun({"-r", "3", "--log-dir", place}, "echo started"), 2, place});
  }
}

TEST_CASE("bad start: the folder that TMPDIR names is created if it is missing") {
  const TemporaryFolder folder;
  const std::string missing = folder.path().string() + "/no/such/folder";
  Program job(acclaunch({"--cpu", "--num_processes", "2"}, "echo started"), {{"TMPDIR", missing}});
  CHECK(job.wait() == 0);
  CHECK(contains(job.out(), "[1] started\n"));
  CHECK(fs::is_empty(missing));
}

TEST_CASE("bad start: a log folder on a full disk" * doctest::skip(!can_mount())) {
  const TemporaryFolder folder;
  const std::string place = folder.path().string();
  check({"no room for the folders",
         with_small_disk(place, "nr_inodes=2",
                         torchrun({"-r", "3", "--log-dir", place}, "echo started")),
         2, "No space left on device"});
}

TEST_CASE("bad start: a full disk ends the log files, not the job" * doctest::skip(!can_mount())) {
  const TemporaryFolder folder;
  const std::string place = folder.path().string();
  const JobPlace job_place;
  Program job(with_small_disk(place, "size=128k",
                              torchrun({"--nproc-per-node", "2", "-t", "3", "--log-dir", place},
                                       "head -c 500000 /dev/zero | tr '\\0' '~'; echo; echo end")),
              {{"TMPDIR", job_place.folder()}});
  CHECK(job.wait() == 0);
  CHECK(contains(job.err(), "stdout.log: No space left on device"));
  CHECK(contains(job.out(), "[0] end\n"));
  CHECK(contains(job.out(), "[1] end\n"));
  CHECK(job_place.left(job) == "nothing");
}

TEST_CASE("bad start: an environment that is too large for the workers") {
  // Linux limits arguments and environment together to a quarter of the stack limit (execve(2)).
  rlimit usual{};
  ::getrlimit(RLIMIT_STACK, &usual);
  const rlimit small{900 << 10, usual.rlim_max};
  ::setrlimit(RLIMIT_STACK, &small);
  const JobPlace place;
  const Words command = acclaunch({"--cpu", "--num_processes", "2"}, "echo started");
  const auto variables = [&](std::size_t size) {
    return std::map<std::string, std::string>{{"TMPDIR", place.folder()},
                                              {"LARGE", std::string(120000, 'x')},
                                              {"REST", std::string(size, 'x')}};
  };
  Words version = command;  // as long as the command, but starts nothing
  version.insert(version.begin() + 1, "--version");
  std::size_t fits = 0;
  for (std::size_t step = 1 << 16; step != 0; step /= 2) {
    try {
      Program(version, variables(fits + step)).wait();
      fits += step;
    } catch (const std::runtime_error&) {
    }
  }
  Program job(command, variables(fits));
  ::setrlimit(RLIMIT_STACK, &usual);
  CHECK(job.wait() == 126);
  CHECK(contains(job.err(), "Argument list too long"));
  CHECK(job.out().empty());
  CHECK(place.left(job) == "nothing");
}

TEST_CASE("bad start: a job runs although its working folder was removed") {
  const TemporaryFolder folder;
  const std::string gone = folder.path().string() + "/gone";
  const JobPlace place;
  Program job(
      in_shell("echo started", {.before = "mkdir " + gone + "; cd " + gone + "; rmdir " + gone}),
      {{"TMPDIR", place.folder()}});
  CHECK(job.wait() == 0);
  CHECK(contains(job.out(), "[1] started\n"));
  CHECK_FALSE(contains(job.err(), "internal error"));
  CHECK_FALSE(contains(job.err(), "terminate"));
  CHECK(place.left(job) == "nothing");
}
