// SPDX-License-Identifier: Apache-2.0
// The processes of a job: their file descriptors, and cleanup after some are killed or stopped.
#include "support/acclaunch.hpp"
#include "support/gate.hpp"
#include "support/left_behind.hpp"
#include "support/program.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"
#include "support/worker_family.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

using namespace acc::test;

namespace {

std::string first_line(const std::filesystem::path& file) {
  std::string line;
  std::getline(std::ifstream(file), line);
  return line;
}

/// Makes a process immune to SIGKILL until it is thawed, with the cgroup version 1 freezer.
class Freezer {
 public:
  Freezer() {
    std::error_code refused;
    usable_ = std::filesystem::create_directory(group_, refused) &&
              std::filesystem::exists(group_ / "freezer.state");
  }
  ~Freezer() {
    thaw();
    std::error_code ignored;
    std::filesystem::remove(group_, ignored);
  }
  Freezer(const Freezer&) = delete;
  Freezer& operator=(const Freezer&) = delete;

  explicit operator bool() const { return usable_; }

  void freeze(pid_t pid) const {
    std::ofstream(group_ / "cgroup.procs") << pid << std::flush;
    std::ofstream(group_ / "freezer.state") << "FROZEN" << std::flush;
    while (first_line(group_ / "freezer.state") != "FROZEN") {
      std::this_thread::yield();
    }
  }
  void thaw() const { std::ofstream(group_ / "freezer.state") << "THAWED" << std::flush; }

 private:
  std::filesystem::path group_ = "/sys/fs/cgroup/freezer/acc-test-" + std::to_string(::getpid());
  bool usable_ = false;
};

/// A job with short timeouts and with restarts allowed.
const std::string kImpatient = "--num_processes 2 --shutdown_timeout 1 --max_restarts 3";

bool can_freeze() {
  return static_cast<bool>(Freezer());
}

bool jobs_have_control_groups() {
  Program probe(acclaunch({"--cpu", "--num_processes", "1"}, "exec cat /proc/self/cgroup"));
  return probe.wait() == 0 && contains(probe.out(), "/acclaunch-");
}

}  // namespace

TEST_CASE("processes: a worker in uninterruptible sleep ends the job, and no restart is tried") {
  Program job({ACC_BIN_DIR "/acclaunch", "--cpu", "--num_processes", "2", "--stuck_timeout", "1",
               "--max_restarts", "3", "/bin/sh", "-c", "[ $RANK = 1 ] && exec $0; exec sleep 1000",
               ACC_UNINTERRUPTIBLE});
  CHECK(job.wait() == 124);
  CHECK(contains(job.out(), "[1] asleep\n"));
  CHECK(contains(job.err(), "rank 1 (pid "));
  CHECK(contains(job.err(), "in uninterruptible sleep"));
  CHECK_FALSE(contains(job.err(), "restart 1"));
}

TEST_CASE("processes: without --stuck_timeout uninterruptible sleep is ignored") {
  Program job({ACC_BIN_DIR "/acclaunch", "--cpu", "--num_processes", "2", "/bin/sh", "-c",
               "[ $RANK = 1 ] && exec $0; exec sleep 1000", ACC_UNINTERRUPTIBLE});
  job.wait_for_text("asleep");
  job.signal(SIGTERM);
  CHECK(job.wait() == 128 + SIGTERM);
}

TEST_CASE("processes: a worker that cannot be killed is reported as still there" *
          doctest::skip(!can_freeze())) {
  const Freezer freezer;
  Gate gate;
  Program job(in_shell("echo pid=$$ end; [ $RANK = 1 ] && { read -r line < $GATE; exit 5; }; "
                       "exec sleep 1000",
                       {.flags = kImpatient}),
              {{"GATE", gate.path()}});
  job.wait_for_text(" end", 2);
  const Watched workers(job.out(), "pid=");
  const bool rank_0_first = job.out().find("[0]") < job.out().find("[1]");
  const pid_t frozen = workers[rank_0_first ? 0 : 1];
  freezer.freeze(frozen);
  gate.open(1);
  CHECK(job.wait() == 5);
  CHECK(contains(job.err(), "in uninterruptible sleep"));
  CHECK(contains(job.err(), "could not be killed"));
  CHECK_FALSE(contains(job.err(), "restart 1"));
  freezer.thaw();
  CHECK(workers.all_end());
  remove_control_group(control_group_of(job.pid()));  // the launcher could not remove it
}

/// A job with a frozen worker that the launcher gives up, and with more output than its reader
/// reads.
class GivenUpJob {
 public:
  explicit GivenUpJob(const Freezer& freezer)
      : job_({"/bin/sh", "-c",
              "{ " ACC_BIN_DIR "/acclaunch --cpu --num_processes 2 --shutdown_timeout 1 /bin/sh -c "
              "\"$0\"; echo status $? >&2; } | { read -r line < $READER; cat; }",
              "echo pid=$$ guardian=$(cut -d' ' -f4 /proc/$(cut -d' ' -f4 /proc/$PPID/stat)/stat) "
              "rank=$RANK end >&2; [ $RANK = 0 ] && exec sleep 1000; yes | head -c 60000; "
              "read -r line < $GATE; exit 5"},
             {{"GATE", gate_.path()}, {"READER", reader_.path()}}) {
    job_.wait_for_text(" end", 2);
    workers_ = Watched(job_.err(), "pid=");
    guardian_ = Watched(job_.err(), "guardian=")[0];
    const bool rank_0_first = job_.err().find("rank=0") < job_.err().find("rank=1");
    const pid_t frozen = workers_[rank_0_first ? 0 : 1];
    group_ = control_group_of(guardian_);
    freezer.freeze(frozen);
    gate_.open(1);
    job_.wait_for_text("could not be killed");
  }

  void signal(int signal) const { ::kill(guardian_, signal); }
  [[nodiscard]] const Watched& workers() const { return workers_; }
  void read_on() { reader_.open(1); }
  Program& program() { return job_; }
  void remove_group() const { remove_control_group(group_); }  // the launcher could not

 private:
  Gate gate_;
  Gate reader_;
  Program job_;
  Watched workers_;
  pid_t guardian_ = -1;
  std::filesystem::path group_;
};

TEST_CASE("processes: a job that gave up a worker can be stopped while it waits for its reader" *
          doctest::skip(!can_freeze())) {
  const Freezer freezer;
  GivenUpJob job(freezer);
  job.signal(SIGTERM);
  job.program().wait_for_text("status 143\n");
  job.read_on();
  CHECK(job.program().wait() == 0);
  freezer.thaw();
  CHECK(job.workers().all_end());
  job.remove_group();
}

std::vector<std::string> in_container(std::vector<std::string> command) {
  const std::vector<std::string> container = {"/usr/bin/unshare", "-pf", "--mount-proc"};
  command.insert(command.begin(), container.begin(), container.end());
  return command;
}

bool has_containers() {
  return Program(in_container({"/bin/true"})).wait() == 0;
}

TEST_CASE("processes: jobs with the same pid in two containers do not affect each other" *
          doctest::skip(!has_containers())) {
  Gate gate;
  Program one(in_container(in_shell("echo up; read -r line < $GATE")), {{"GATE", gate.path()}});
  one.wait_for_text("up", 2);
  Program other(in_container(in_shell("setsid sleep 1000 & true")));
  CHECK(other.wait() == 0);
  gate.open(2);
  CHECK(one.wait() == 0);
}

TEST_CASE("processes: a worker's child that cannot be killed is named, and no restart is tried" *
          doctest::skip(!can_freeze())) {
  const Freezer freezer;
  Gate gate;
  Program job(in_shell("[ $RANK = 1 ] && exec sleep 1000; setsid sleep 1000 & echo pid=$! end; "
                       "read -r line < $GATE; exit 5",
                       {.flags = kImpatient}),
              {{"GATE", gate.path()}});
  job.wait_for_text(" end");
  const Watched child(job.out(), "pid=");
  freezer.freeze(child[0]);
  gate.open(1);
  CHECK(job.wait() == 5);
  CHECK(contains(job.err(), "cannot be killed: pid " + std::to_string(child[0]) +
                                " (sleep), in uninterruptible sleep"));
  CHECK_FALSE(contains(job.err(), "restart 1"));
  freezer.thaw();
  CHECK(child.all_end());
  remove_control_group(control_group_of(job.pid()));
}

TEST_CASE("processes: deaths while the supervisor was stopped are reported in their order") {
  for (int round = 0; round < 10; ++round) {
    for (const std::vector<int>& order : std::vector<std::vector<int>>{
             {2, 0, 1}, {0, 1, 2}, {1, 2, 0}, {2, 1, 0}, {1, 0, 2}, {0, 2, 1}}) {
      CAPTURE(order.front());
      Program job(in_shell("echo r$RANK=$$ end; exec sleep 1000", {.flags = "--num_processes 4"}));
      job.wait_for_text(" end", 4);
      stop(supervisor_of(job));
      for (const int rank : order) {
        const Watched worker(job.out(), "r" + std::to_string(rank) + "=");
        ::kill(worker[0], SIGKILL);
        CHECK(worker.all_end());
      }
      ::kill(supervisor_of(job), SIGCONT);
      CHECK(job.wait() == 128 + SIGKILL);
      std::size_t at = job.err().find("the job failed: rank " + std::to_string(order[0]) + ": ");
      for (const int rank : {order[1], order[2]}) {  // reported as failed by themselves too
        REQUIRE(at != std::string::npos);
        at = job.err().find(" later, rank " + std::to_string(rank) + " (", at);
      }
      CHECK(at != std::string::npos);
    }
  }
}

TEST_CASE("processes: no control group is left, however the job ends" *
          doctest::skip(!jobs_have_control_groups())) {
  for (const char* how : {"exit 0", "exit 3", "kill -9 $$"}) {
    CAPTURE(how);
    Gate gate;
    Program job(acclaunch({"--cpu", "--num_processes", "2"},
                          "echo worker-up; [ $RANK = 1 ] && exit 0; read -r line < $GATE; " +
                              std::string(how)),
                {{"GATE", gate.path()}});
    job.wait_for_text("worker-up", 2);
    CHECK(std::filesystem::exists(control_group_of(job.pid())));
    gate.open(1);
    job.wait();
    CHECK(control_group_of(job.pid()).empty());
  }
}

TEST_CASE("processes: 32 workers under a soft limit of 64 descriptors, which workers inherit") {
  Program job(in_shell("echo limit=$(ulimit -Sn) end",
                       {.before = "ulimit -Sn 64", .flags = "--num_processes 32"}));
  CHECK(job.wait() == 0);
  const Watched limits(job.out(), "limit=");
  CHECK(limits.size() == 32);
  CHECK(contains(job.out(), "[31] limit=64 end\n"));
}

TEST_CASE("processes: a hard limit of 64 descriptors allows few workers, and 32 are an error") {
  Program few(in_shell("echo limit=$(ulimit -Sn) end",
                       {.before = "ulimit -n 64", .flags = "--num_processes 4"}));
  CHECK(few.wait() == 0);
  CHECK(contains(few.out(), "[3] limit=64 end\n"));
  for (const char* limit : {"64", "30", "26", "16", "8"}) {
    CAPTURE(limit);
    Program job(in_shell("echo started", {.before = std::string("ulimit -n ") + limit,
                                          .flags = "--num_processes 32"}));
    CHECK(job.wait() == 2);
    CHECK(contains(job.err(), " needs "));
    CHECK(contains(job.err(), std::string("the hard limit is ") + limit));
    CHECK(contains(job.err(), "ulimit -Hn"));
    CHECK(job.out().empty());
  }
}

TEST_CASE("processes: the number of descriptors that the error names is enough") {
  for (const std::string flags : {"", "-t 3", "-r 3", "-t 1 -r 2 --duplicate-stdout-filters a,b"}) {
    CAPTURE(flags);
    const TemporaryFolder folder;
    const auto command = [&](const std::string& limit) {
      return std::vector<std::string>{
          "/bin/sh", "-c",
          "ulimit -n " + limit + "; exec " ACC_BIN_DIR "/acclaunch torchrun --nproc-per-node 24 " +
              flags + " --log-dir " + folder.path().string() + " --no-python /bin/sh -c \"$0\"",
          "echo a word; echo a word >&2; [ $RANK = 23 ] && exit 7; exec sleep 1000"};
    };
    Program refused(command("30"));
    CHECK(refused.wait() == 2);
    const std::string mark = "24 workers needs ";
    REQUIRE(contains(refused.err(), mark));
    const Watched needed(refused.err(), mark);
    Program job(command(std::to_string(needed[0])));
    CHECK(job.wait() == 7);
    CHECK_FALSE(contains(job.err(), "Too many open files"));
    Program refused_again(command(std::to_string(needed[0] - 1)));
    CHECK(refused_again.wait() == 2);
  }
}

TEST_CASE("processes: a standard stream that was closed at the start causes no harm") {
  for (const char* closing :
       {"exec <&-", "exec >&-", "exec 2>&-", "exec <&- >&-", "exec <&- >&- 2>&-"}) {
    CAPTURE(closing);
    const TemporaryFolder folder;
    const std::string script = "readlink /proc/$$/fd/0 >" + folder.path().string() + "/$RANK";
    Program job(in_shell(script, {.before = closing}));
    CHECK(job.wait() == 0);
    for (const char* rank : {"0", "1"}) {
      std::string input;
      std::ifstream(folder.path() / rank) >> input;
      CHECK(input == "/dev/null");
    }
    Program failing(in_shell("echo a word; exit 3", {.before = closing}));
    CHECK(failing.wait() == 3);
  }
}
