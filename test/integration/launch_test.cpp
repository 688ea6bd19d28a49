// SPDX-License-Identifier: Apache-2.0
// acclaunch with real processes: their environment, how they end, and that no process is left.
#include "support/acclaunch.hpp"
#include "support/gate.hpp"
#include "support/program.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"
#include "support/worker_family.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

using namespace acc::test;

namespace {

using Flags = std::vector<std::string>;

}  // namespace

TEST_CASE("launch: success prints nothing, lines have their rank as prefix") {
  Program job(acclaunch({"--cpu", "--num_processes", "3"}, "echo out $RANK; echo err $RANK >&2"));
  CHECK(job.wait() == 0);
  std::istringstream out(job.out());
  std::vector<std::string> lines;
  for (std::string line; std::getline(out, line);) {
    lines.push_back(line);
  }
  std::sort(lines.begin(), lines.end());
  CHECK(lines == std::vector<std::string>{"[0] out 0", "[1] out 1", "[2] out 2"});
  CHECK(contains(job.err(), "[1] err 1\n"));
  CHECK_FALSE(contains(job.err(), "failed"));
}

TEST_CASE("launch: workers get their ranks in environment variables") {
  Program job(acclaunch({"--cpu", "--num_processes", "2"}, R"(
    echo "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $TORCHELASTIC_RESTART_COUNT" \
         "$MASTER_ADDR $INHERITED"
    [ -d "${TORCHELASTIC_ERROR_FILE%/*}" ] && echo error folder)"),
              {{"INHERITED", "a b"}, {"RANK", "77"}});
  CHECK(job.wait() == 0);
  CHECK(contains(job.out(), "[0] 0 0 2 2 0 0 127.0.0.1 a b\n"));
  CHECK(contains(job.out(), "[1] 1 1 2 2 0 0 127.0.0.1 a b\n"));
  CHECK(contains(job.out(), "[1] error folder\n"));
}

TEST_CASE("launch: kill -9 of one worker is reported with rank and signal") {
  Program job(acclaunch({"--cpu", "--num_processes", "3"},
                        "[ $RANK = 2 ] && echo pid=$$ end; exec sleep 1000"));
  job.wait_for_text(" end");
  const Watched worker(job.out(), "pid=");
  ::kill(worker[0], SIGKILL);
  CHECK(job.wait() == 128 + SIGKILL);
  CHECK(contains(job.err(), "the job failed: rank 2: killed by SIGKILL (signal 9)\n"));
  CHECK(contains(job.err(), "  pid       " + std::to_string(worker[0]) + "\n"));
  CHECK(contains(job.err(), "ranks 0-1: ended by acclaunch, killed by SIGTERM (signal 15)\n"));
}

TEST_CASE("launch: children that outlive their worker end with the job") {
  Gate gate;
  Program job(acclaunch({"--cpu", "--num_processes", "2"},
                        "setsid sh -c 'echo pid=$$ end; exec sleep 1000' &\n read -r line < $GATE"),
              {{"GATE", gate.path()}});
  job.wait_for_text(" end", 2);
  gate.open(2);
  CHECK(job.wait() == 0);
  const Watched orphans(job.out(), "pid=");
  CHECK(orphans.size() == 2);
  CHECK(orphans.all_end());
}

TEST_CASE("launch: supervisor and guardian have different names") {
  Program job(acclaunch({"--cpu", "--num_processes", "1"}, "echo worker-up; exec sleep 1000"));
  job.wait_for_text("worker-up");
  std::string name;
  std::string title;
  const std::string supervisor = "/proc/" + std::to_string(supervisor_of(job));
  std::ifstream(supervisor + "/comm") >> name;
  std::getline(std::ifstream(supervisor + "/cmdline"), title);
  CHECK(name == "acc-supervisor");
  CHECK_FALSE(contains(title, "acclaunch"));
}

TEST_CASE("launch: a worker has time to clean up on SIGTERM") {
  Program job(
      acclaunch({"--cpu", "--num_processes", "2"},
                "trap 'echo saved $RANK; exit 0' TERM; echo worker-up; while :; do sleep 1000 "
                "& wait; done"));
  job.wait_for_text("worker-up", 2);
  job.signal(SIGTERM);
  CHECK(job.wait() == 128 + SIGTERM);
  CHECK(contains(job.out(), "[0] saved 0\n"));
  CHECK(contains(job.out(), "[1] saved 1\n"));
}

TEST_CASE("launch: a job that exceeds its time limit ends with status 124") {
  for (const char* script : {"exec sleep 1000", "trap 'exit 0' TERM; sleep 1000 & wait"}) {
    CAPTURE(script);
    Program job(acclaunch({"--cpu", "--num_processes", "2", "--timeout", "3"}, script));
    CHECK(job.wait() == 124);
    CHECK(
        contains(job.err(), "the time limit of 3 s (--timeout) is exceeded: ending the workers\n"));
    CHECK(contains(job.err(), "the job failed: the time limit of 3 s (--timeout) is exceeded\n"));
    CHECK(contains(job.err(), "ranks 0-1: "));
  }
  Program quick(acclaunch({"--cpu", "--num_processes", "2", "--timeout", "1000"}, "exit 0"));
  CHECK(quick.wait() == 0);
}

TEST_CASE("launch: a failed job writes its report, and torchrun's error file") {
  const TemporaryFolder folder;
  const std::string logs = (folder.path() / "logs").string();
  const std::string own = (folder.path() / "error.json").string();
  Program job(acclaunch({"--cpu", "--num_processes", "2", "--log_dir", logs},
                        R"([ $RANK = 1 ] && {
                             echo last words >&2
                             echo '{"message": {"message": "ValueError: bad batch"}}' \
                               > $TORCHELASTIC_ERROR_FILE
                             exit 7; }
                           exec sleep 1000)"),
              {{"TORCHELASTIC_ERROR_FILE", own}});
  CHECK(job.wait() == 7);
  CHECK(contains(job.err(), "  error     ValueError: bad batch\n"));
  CHECK(contains(job.err(), "    | last words\n"));
  const std::string mark = "  report    ";
  const std::size_t begin = job.err().find(mark) + mark.size();
  const std::string report =
      file_text(job.err().substr(begin, job.err().find('\n', begin) - begin));
  CHECK(contains(report, "\"error_message\": \"ValueError: bad batch\""));
  CHECK(contains(report, "\"exit_status\": 7"));
  CHECK(contains(file_text(own), "\"errorCode\":7"));
}

TEST_CASE("launch: other signals are passed on to the workers") {
  Program job(acclaunch({"--cpu", "--num_processes", "2"},
                        "trap 'echo got it; exit 0' USR1; echo worker-up; while :; do sleep 1000 & "
                        "wait; done"));
  job.wait_for_text("worker-up", 2);
  job.signal(SIGUSR1);
  CHECK(job.wait() == 0);
  job.wait_for_text("got it", 2);
}

TEST_CASE("launch: no error folder is left behind") {
  const TemporaryFolder folder;
  Program job(acclaunch({"--cpu", "--num_processes", "2"}, "exit $RANK"),
              {{"TMPDIR", folder.path().string()}});
  CHECK(job.wait() == 1);
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("launch: bad input ends with status 2 before anything is started") {
  const Flags cases[] = {{"--num_processes", "0"}, {"--no_such_flag"}, {"--num_processes", "x"}};
  for (const Flags& flags : cases) {
    CAPTURE(flags.front());
    Program job(acclaunch(flags, "echo started"));
    CHECK(job.wait() == 2);
    CHECK(job.err().starts_with("acclaunch: "));
    CHECK(job.out().empty());
  }
}

TEST_CASE("launch: a single plain process has the launcher's own stdout and stderr") {
  const std::string script =
      "for fd in 1 2; do readlink /proc/$$/fd/$fd; readlink /proc/$PPID/fd/$fd; done";
  for (const char* count : {"1", "2"}) {
    CAPTURE(count);
    Program job(acclaunch({"--cpu", "--num_processes", count}, script));
    CHECK(job.wait() == 0);
    std::istringstream out(job.out());
    std::string own;
    std::string launcher;
    std::getline(out, own);
    std::getline(out, launcher);
    CHECK(contains(own, "pipe:["));
    CHECK((own == launcher) == (count == std::string("1")));
  }
}

TEST_CASE("launch: with --compat accelerate any failure is 1") {
  for (const char* how : {"exit 3", "kill -9 $$"}) {
    CAPTURE(how);
    Program job(acclaunch({"--compat", "accelerate", "--cpu", "--no_python"}, how));
    CHECK(job.wait() == 1);
  }
}

TEST_CASE("launch: a given port in use is an error that names its owner") {
  Program holder(acclaunch({"--cpu", "--num_processes", "2", "--main_process_port", "0"},
                           "echo port=$MASTER_PORT end; exec sleep 1000"));
  holder.wait_for_text(" end");
  const std::string port = std::to_string(Watched(holder.out(), "port=")[0]);
  Program job(acclaunch({"--cpu", "--num_processes", "2", "--main_process_port", port}, "true"));
  CHECK(job.wait() == 2);
  CHECK(contains(job.err(), port));
  CHECK(contains(job.err(), "acc-supervisor (pid " + std::to_string(supervisor_of(holder)) + ")"));
}

TEST_CASE("launch: several machines need their port, also the default one") {
  Program holder(acclaunch({"--cpu", "--num_processes", "2", "--main_process_port", "0"},
                           "echo port=$MASTER_PORT end; exec sleep 1000"));
  holder.wait_for_text(" end");
  const std::string port = std::to_string(Watched(holder.out(), "port=")[0]);
  Program job(acclaunch({"--cpu", "--num_processes", "2", "--num_machines", "2", "--machine_rank",
                         "0", "--main_process_ip", "127.0.0.1", "--main_process_port", port},
                        "echo started"));
  CHECK(job.wait() == 2);
  CHECK(contains(job.err(), port));
  CHECK(contains(job.err(), "acc-supervisor (pid " + std::to_string(supervisor_of(holder)) + ")"));
  CHECK(job.out().empty());
}

TEST_CASE("launch: two concurrent jobs get different ports") {
  const std::string script = "echo port=$MASTER_PORT end; read -r line < $GATE";
  const Gate gate;
  Program one(acclaunch({"--cpu", "--num_processes", "2"}, script), {{"GATE", gate.path()}});
  Program two(acclaunch({"--cpu", "--num_processes", "2"}, script), {{"GATE", gate.path()}});
  one.wait_for_text(" end", 2);
  two.wait_for_text(" end", 2);
  CHECK(Watched(one.out(), "port=")[0] != Watched(two.out(), "port=")[0]);
  one.signal(SIGTERM);
  two.signal(SIGTERM);
  CHECK(one.wait() == 128 + SIGTERM);
  CHECK(two.wait() == 128 + SIGTERM);
}
