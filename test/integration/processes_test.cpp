// The processes of a job: what they need, and what is left when some of them are killed or stopped.
#include "support/gate.hpp"
#include "support/program.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"
#include "support/worker_family.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <thread>

using namespace acc::test;

namespace {

/// /bin/sh -c "before; exec acclaunch --cpu [flags] /bin/sh -c script"
std::vector<std::string> in_shell(const std::string& before, const std::string& flags,
                                  const std::string& script) {
  return {"/bin/sh", "-c",
          before + "; exec " ACC_BIN_DIR "/acclaunch --cpu " + flags + " /bin/sh -c \"$0\"",
          script};
}

std::string first_line(const std::filesystem::path& file) {
  std::string line;
  std::getline(std::ifstream(file), line);
  return line;
}

/// The job's control group, by a worker's /proc/PID/cgroup; empty where there is none.
std::filesystem::path job_group(const std::filesystem::path& of_worker, pid_t guardian) {
  std::ifstream lines(of_worker);
  for (std::string line; std::getline(lines, line);) {
    if (line.ends_with("/acclaunch-" + std::to_string(guardian))) {
      for (const std::filesystem::path mount : {"/sys/fs/cgroup/unified", "/sys/fs/cgroup"}) {
        if (std::filesystem::exists(mount / "cgroup.procs")) {
          return mount.string() + line.substr(3);
        }
      }
    }
  }
  return {};
}

/// Returns when the process has stopped, or has gone.
void wait_until_stopped(pid_t pid) {
  const std::string stat = "/proc/" + std::to_string(pid) + "/stat";
  for (std::string line = first_line(stat); !line.empty() && !contains(line, ") T ");) {
    std::this_thread::yield();
    line = first_line(stat);
  }
}

void stop_and_wait(pid_t pid) {
  ::kill(pid, SIGSTOP);
  wait_until_stopped(pid);
}

/// Makes a process immune to SIGKILL for a while: frozen by cgroup version 1.
class Freezer {
 public:
  Freezer() {
    std::error_code refused;
    usable_ = std::filesystem::create_directory(group_, refused) &&
              std::filesystem::exists(group_ / "freezer.state") &&
              ::mkfifo(fifo().c_str(), 0600) == 0;
  }
  ~Freezer() {
    thaw();
    std::error_code ignored;
    std::filesystem::remove(group_, ignored);
  }
  Freezer(const Freezer&) = delete;
  Freezer& operator=(const Freezer&) = delete;

  explicit operator bool() const { return usable_; }
  [[nodiscard]] std::string fifo() const { return (folder_.path() / "fifo").string(); }

  void freeze(pid_t pid) const {
    std::ofstream(group_ / "cgroup.procs") << pid << std::flush;
    std::ofstream(group_ / "freezer.state") << "FROZEN" << std::flush;
    while (first_line(group_ / "freezer.state") != "FROZEN") {
      std::this_thread::yield();
    }
  }
  void thaw() const { std::ofstream(group_ / "freezer.state") << "THAWED" << std::flush; }

 private:
  TemporaryFolder folder_;
  std::filesystem::path group_ = "/sys/fs/cgroup/freezer/acc-test-" + std::to_string(::getpid());
  bool usable_ = false;
};

/// A job of two workers with children and grandchildren, and the processes above them.
class FamilyJob {
 public:
  explicit FamilyJob(const std::string& flags = "--num_processes 2")
      : job_(in_shell("true", flags, kFamily), {{"TMPDIR", folder_.path().string()}}) {
    job_.wait_for_text(" end", 2 * kFamilySize);
    family_.emplace(job_.out(), "pid=");
    above_ = {job_.pid(), keeper_of(job_), supervisor_of(job_)};
    upper_.emplace("pid=" + std::to_string(above_[1]) + " pid=" + std::to_string(above_[2]),
                   "pid=");
    group_ = job_group("/proc/" + std::to_string((*family_)[0]) + "/cgroup", job_.pid());
  }

  Program& program() { return job_; }
  [[nodiscard]] pid_t guardian() const { return above_[0]; }
  [[nodiscard]] pid_t keeper() const { return above_[1]; }
  [[nodiscard]] pid_t supervisor() const { return above_[2]; }

  /// Those who are killed can do nothing any more when the first one dies.
  void kill_at_once(const std::vector<pid_t>& pids) const {
    for (const int signal : {SIGSTOP, SIGKILL}) {
      for (const pid_t pid : pids) {
        ::kill(pid, signal);
      }
    }
  }

  void check_that_nothing_is_left() {
    CHECK(family_->all_end());
    CHECK(upper_->all_end());
    CHECK(std::filesystem::is_empty(folder_.path()));
    CHECK_FALSE((!group_.empty() && std::filesystem::exists(group_)));
  }

 private:
  TemporaryFolder folder_;
  Program job_;
  std::optional<Watched> family_;
  std::optional<Watched> upper_;
  std::vector<pid_t> above_;
  std::filesystem::path group_;
};

}  // namespace

TEST_CASE("processes: a SIGKILL of one or two of guardian, keeper and supervisor leaves nothing") {
  for (int round = 0; round < 5; ++round) {
    for (unsigned killed = 1; killed < 7; ++killed) {
      CAPTURE(killed);  // bit 0: the guardian, 1: the keeper, 2: the supervisor
      FamilyJob job;
      std::vector<pid_t> pids;
      for (unsigned who = 0; who < 3; ++who) {
        if ((killed >> who & 1U) != 0) {
          pids.push_back(std::vector{job.guardian(), job.keeper(), job.supervisor()}[who]);
        }
      }
      job.kill_at_once(pids);
      CHECK(job.program().wait() == 128 + SIGKILL);
      job.check_that_nothing_is_left();
    }
  }
}

TEST_CASE("processes: guardian and supervisor killed at the same moment, 20 times") {
  for (int round = 0; round < 20; ++round) {
    FamilyJob job;
    job.kill_at_once({job.guardian(), job.supervisor()});
    CHECK(job.program().wait() == 128 + SIGKILL);
    job.check_that_nothing_is_left();
  }
}

TEST_CASE("processes: what forks all the time is ended too") {
  // Each of a chain of short-lived processes starts the next one before it ends; all hold the fifo.
  const std::string chain = R"(
    exec 9> $FOLDER/fifo
    export LINKS=0
    cat > $FOLDER/link.$RANK <<'END'
    LINKS=$((LINKS + 1))
    [ $LINKS -ge 1000 ] || setsid sh $FOLDER/link.$RANK &
END
    for i in 1 2 3 4; do sh $FOLDER/link.$RANK & done
    [ $RANK = 1 ] && { sleep 0.05; exit 3; }
    exec sleep 1000)";
  const TemporaryFolder folder;
  const std::string fifo = folder.path() / "fifo";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  const acc::UniqueFd reader(::open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  Program job(in_shell("true", "--num_processes 2", chain), {{"FOLDER", folder.path().string()}});
  CHECK(job.wait() == 3);
  pollfd writers{reader.get(), 0, 0};
  CHECK(::poll(&writers, 1, 0) == 1);
  CHECK(writers.revents == POLLHUP);  // there is none any more
}

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

TEST_CASE("processes: without a limit uninterruptible sleep is nobody's business") {
  Program job({ACC_BIN_DIR "/acclaunch", "--cpu", "--num_processes", "2", "/bin/sh", "-c",
               "[ $RANK = 1 ] && exec $0; exec sleep 1000", ACC_UNINTERRUPTIBLE});
  job.wait_for_text("asleep");
  job.signal(SIGTERM);
  CHECK(job.wait() == 128 + SIGTERM);
}

TEST_CASE("processes: a worker that cannot be killed is given up, and said to be there") {
  Freezer freezer;
  if (!freezer) {
    MESSAGE("skipped: no freezer of cgroup version 1 can be had here");
    return;
  }
  Program job({ACC_BIN_DIR "/acclaunch", "--cpu", "--num_processes", "2", "--shutdown_timeout", "1",
               "--max_restarts", "3", "/bin/sh", "-c",
               "echo pid=$$ end; [ $RANK = 1 ] && { read -r line < $FIFO; exit 5; }; exec sleep "
               "1000"},
              {{"FIFO", freezer.fifo()}});
  job.wait_for_text(" end", 2);
  const Watched workers(job.out(), "pid=");
  const bool rank_0_first = job.out().find("[0]") < job.out().find("[1]");
  const pid_t frozen = workers[rank_0_first ? 0 : 1];
  const auto group = job_group("/proc/" + std::to_string(frozen) + "/cgroup", job.pid());
  freezer.freeze(frozen);
  std::ofstream(freezer.fifo()) << "go on\n";
  CHECK(job.wait() == 5);
  CHECK(contains(job.err(), "in uninterruptible sleep"));
  CHECK(contains(job.err(), "could not be killed"));
  CHECK_FALSE(contains(job.err(), "restart 1"));
  freezer.thaw();
  CHECK(workers.all_end());
  std::filesystem::remove(group);  // nobody else can now
}

/// A job with a frozen worker that is given up, which has more to say than its reader takes.
class GivenUpJob {
 public:
  explicit GivenUpJob(const Freezer& freezer)
      : job_({"/bin/sh", "-c",
              "{ " ACC_BIN_DIR "/acclaunch --cpu --num_processes 2 --shutdown_timeout 1 /bin/sh -c "
              "\"$0\"; echo status $? >&2; } | { read -r line < $READER; cat; }",
              "echo pid=$$ guardian=$(cut -d' ' -f4 /proc/$(cut -d' ' -f4 /proc/$PPID/stat)/stat) "
              "rank=$RANK end >&2; [ $RANK = 0 ] && exec sleep 1000; yes | head -c 60000; "
              "read -r line < $FIFO; exit 5"},
             {{"FIFO", freezer.fifo()}, {"READER", reader_.path()}}) {
    job_.wait_for_text(" end", 2);
    workers_ = Watched(job_.err(), "pid=");
    guardian_ = Watched(job_.err(), "guardian=")[0];
    const bool rank_0_first = job_.err().find("rank=0") < job_.err().find("rank=1");
    const pid_t frozen = workers_[rank_0_first ? 0 : 1];
    group_ = job_group("/proc/" + std::to_string(frozen) + "/cgroup", guardian_);
    freezer.freeze(frozen);
    std::ofstream(freezer.fifo()) << "go on\n";
    job_.wait_for_text("could not be killed");
  }

  void signal(int signal) const { ::kill(guardian_, signal); }
  [[nodiscard]] const Watched& workers() const { return workers_; }
  void read_on() { reader_.open(1); }
  Program& program() { return job_; }
  void remove_group() const { std::filesystem::remove(group_); }  // nobody else can any more

 private:
  Gate reader_;
  Program job_;
  Watched workers_;
  pid_t guardian_ = -1;
  std::filesystem::path group_;
};

TEST_CASE("processes: a worker that was given up may end while the job's reader is waited for") {
  Freezer freezer;
  if (!freezer) {
    MESSAGE("skipped: no freezer of cgroup version 1 can be had here");
    return;
  }
  GivenUpJob job(freezer);
  freezer.thaw();
  CHECK(job.workers().all_end());
  job.read_on();
  CHECK(job.program().wait() == 0);
  CHECK(contains(job.program().err(), "status 5\n"));
}

TEST_CASE("processes: a job that gave up a worker can be stopped while its reader is waited for") {
  Freezer freezer;
  if (!freezer) {
    MESSAGE("skipped: no freezer of cgroup version 1 can be had here");
    return;
  }
  GivenUpJob job(freezer);
  job.signal(SIGTERM);
  job.program().wait_for_text("status 143\n");
  job.read_on();
  CHECK(job.program().wait() == 0);
  freezer.thaw();
  CHECK(job.workers().all_end());
  job.remove_group();
}

TEST_CASE(
    "processes: impatience does not keep a worker that cannot be killed from being given up") {
  Freezer freezer;
  if (!freezer) {
    MESSAGE("skipped: no freezer of cgroup version 1 can be had here");
    return;
  }
  Program job(in_shell("true", "--num_processes 2 --shutdown_timeout 1",
                       "[ $RANK = 0 ] && echo pid=$$ end; exec sleep 1000"));
  job.wait_for_text(" end");
  const Watched worker(job.out(), "pid=");
  const auto group = job_group("/proc/" + std::to_string(worker[0]) + "/cgroup", job.pid());
  freezer.freeze(worker[0]);
  const std::jthread user([&job](const std::stop_token& over) {
    while (!over.stop_requested()) {
      job.signal(SIGINT);
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
    }
  });
  CHECK(job.wait() == 128 + SIGINT);
  freezer.thaw();
  CHECK(worker.all_end());
  std::filesystem::remove(group);
}

TEST_CASE("processes: jobs of one number in two containers leave each other alone") {
  const std::vector<std::string> container = {"/usr/bin/unshare", "-pf", "--mount-proc"};
  const auto in_container = [&](std::vector<std::string> command) {
    command.insert(command.begin(), container.begin(), container.end());
    return command;
  };
  if (Program(in_container({"/bin/true"})).wait() != 0) {
    MESSAGE("skipped: no namespace for processes can be made here");
    return;
  }
  Gate gate;
  Program one(in_container(in_shell("true", "--num_processes 2", "echo up; read -r line < $FIFO")),
              {{"FIFO", gate.path()}});
  one.wait_for_text("up", 2);
  Program other(in_container(in_shell("true", "--num_processes 2", "setsid sleep 1000 & true")));
  CHECK(other.wait() == 0);
  gate.open(2);
  CHECK(one.wait() == 0);
}

TEST_CASE("processes: a worker's child that cannot be killed is named, and no restart is tried") {
  Freezer freezer;
  if (!freezer) {
    MESSAGE("skipped: no freezer of cgroup version 1 can be had here");
    return;
  }
  Program job({ACC_BIN_DIR "/acclaunch", "--cpu", "--num_processes", "2", "--shutdown_timeout", "1",
               "--max_restarts", "3", "/bin/sh", "-c",
               "[ $RANK = 1 ] && exec sleep 1000; setsid sleep 1000 & echo pid=$! end; read -r "
               "line < $FIFO; exit 5"},
              {{"FIFO", freezer.fifo()}});
  job.wait_for_text(" end");
  const Watched child(job.out(), "pid=");
  const auto group = job_group("/proc/" + std::to_string(child[0]) + "/cgroup", job.pid());
  freezer.freeze(child[0]);
  std::ofstream(freezer.fifo()) << "go on\n";
  CHECK(job.wait() == 5);
  CHECK(contains(job.err(), "cannot be killed: pid " + std::to_string(child[0]) +
                                " (sleep), in uninterruptible sleep"));
  CHECK_FALSE(contains(job.err(), "restart 1"));
  freezer.thaw();
  CHECK(child.all_end());
  std::filesystem::remove(group);
}

TEST_CASE("processes: deaths while the supervisor was stopped are told in their order") {
  for (int round = 0; round < 10; ++round) {
    for (const std::vector<int>& order : std::vector<std::vector<int>>{
             {2, 0, 1}, {0, 1, 2}, {1, 2, 0}, {2, 1, 0}, {1, 0, 2}, {0, 2, 1}}) {
      CAPTURE(order.front());
      Program job(in_shell("true", "--num_processes 4",
                           "echo $RANK >/dev/null; echo r$RANK=$$ end; exec sleep 1000"));
      job.wait_for_text(" end", 4);
      stop_and_wait(supervisor_of(job));
      for (const int rank : order) {
        const Watched worker(job.out(), "r" + std::to_string(rank) + "=");
        ::kill(worker[0], SIGKILL);
        CHECK(worker.all_end());
      }
      ::kill(supervisor_of(job), SIGCONT);
      CHECK(job.wait() == 128 + SIGKILL);
      CHECK(contains(job.err(), "the job failed: rank " + std::to_string(order.front()) + ": "));
    }
  }
}

TEST_CASE("processes: whoever is stopped, and goes on, the job ends") {
  const auto guardian = [](const FamilyJob& job) { return job.guardian(); };
  const auto keeper = [](const FamilyJob& job) { return job.keeper(); };
  const auto supervisor = [](const FamilyJob& job) { return job.supervisor(); };
  for (const auto& who :
       std::vector<std::function<pid_t(const FamilyJob&)>>{guardian, keeper, supervisor}) {
    FamilyJob job;
    stop_and_wait(who(job));
    job.program().signal(SIGTERM);
    ::kill(who(job), SIGCONT);
    CHECK(job.program().wait() == 128 + SIGTERM);
    job.check_that_nothing_is_left();
  }
}

TEST_CASE("processes: a stopped supervisor ends with its guardian") {
  FamilyJob job;
  stop_and_wait(job.supervisor());
  ::kill(job.guardian(), SIGKILL);
  CHECK(job.program().wait() == 128 + SIGKILL);
  job.check_that_nothing_is_left();
}

TEST_CASE("processes: a stopped worker ends with the job, by a signal and by a failure") {
  for (const bool by_signal : {true, false}) {
    CAPTURE(by_signal);
    Program job(in_shell("true", "--num_processes 2", "echo r$RANK=$$ end; exec sleep 1000"));
    job.wait_for_text(" end", 2);
    const Watched first(job.out(), "r0=");
    const Watched second(job.out(), "r1=");
    stop_and_wait(first[0]);
    by_signal ? job.signal(SIGTERM) : static_cast<void>(::kill(second[0], SIGKILL));
    CHECK(job.wait() == 128 + (by_signal ? SIGTERM : SIGKILL));
    CHECK(first.all_end());
  }
}

TEST_CASE("processes: Ctrl-Z stops the workers, and SIGCONT lets all go on") {
  FamilyJob job;
  job.program().signal(SIGTSTP);
  wait_until_stopped(job.guardian());
  job.program().signal(SIGCONT);
  job.program().signal(SIGTERM);
  CHECK(job.program().wait() == 128 + SIGTERM);
  job.check_that_nothing_is_left();
}

TEST_CASE("processes: no control group stays, however the job ends") {
  for (const char* how : {"exit 0", "exit 3", "kill -9 $$"}) {
    CAPTURE(how);
    const TemporaryFolder folder;
    Program job(
        in_shell("true", "--num_processes 2",
                 "[ $RANK = 1 ] && exit 0; cp /proc/self/cgroup $FOLDER/0; " + std::string(how)),
        {{"FOLDER", folder.path().string()}});
    job.wait();
    const std::filesystem::path group = job_group(folder.path() / "0", job.pid());
    if (group.empty()) {
      MESSAGE("skipped: no control group can be made here");
      return;
    }
    CHECK(std::filesystem::exists(group.parent_path()));
    CHECK_FALSE(std::filesystem::exists(group));
  }
}

TEST_CASE("processes: 32 workers under a soft limit of 64 descriptors, which they see") {
  Program job(in_shell("ulimit -Sn 64", "--num_processes 32", "echo limit=$(ulimit -Sn) end"));
  CHECK(job.wait() == 0);
  const Watched limits(job.out(), "limit=");
  CHECK(limits.size() == 32);
  CHECK(contains(job.out(), "[31] limit=64 end\n"));
}

TEST_CASE("processes: a hard limit of 64 descriptors is enough for few, and refuses 32 clearly") {
  Program few(in_shell("ulimit -n 64", "--num_processes 4", "echo limit=$(ulimit -Sn) end"));
  CHECK(few.wait() == 0);
  CHECK(contains(few.out(), "[3] limit=64 end\n"));
  for (const char* limit : {"64", "30", "26", "16", "8"}) {
    CAPTURE(limit);
    Program job(in_shell(std::string("ulimit -n ") + limit, "--num_processes 32", "echo started"));
    CHECK(job.wait() == 2);
    CHECK(contains(job.err(), " needs "));
    CHECK(contains(job.err(), std::string("the hard limit is ") + limit));
    CHECK(contains(job.err(), "ulimit -Hn"));
    CHECK(job.out().empty());
  }
}

TEST_CASE("processes: as many descriptors as the refusal names are enough") {
  for (const std::string flags : {"", "-t 3", "-r 3", "-t 1 -r 2 --duplicate-stdout-filters a,b"}) {
    CAPTURE(flags);
    const TemporaryFolder folder;
    const auto command = [&](const std::string& limit) {
      return std::vector<std::string>{
          "/bin/sh", "-c",
          "ulimit -n " + limit + "; exec " ACC_BIN_DIR "/acclaunch torchrun --nproc-per-node 24 " +
              flags + " --log-dir " + folder.path().string() + " --no-python /bin/sh -c \"$0\"",
          "echo a word; echo a word >&2; sleep 0.1; exit $((RANK == 23 ? 7 : 0))"};
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

TEST_CASE("processes: a standard stream that was closed at the start harms nobody") {
  for (const char* closing :
       {"exec <&-", "exec >&-", "exec 2>&-", "exec <&- >&-", "exec <&- >&- 2>&-"}) {
    CAPTURE(closing);
    const TemporaryFolder folder;
    const std::string script = "readlink /proc/$$/fd/0 >" + folder.path().string() + "/$RANK";
    Program job(in_shell(closing, "--num_processes 2", script));
    CHECK(job.wait() == 0);
    for (const char* rank : {"0", "1"}) {
      std::string input;
      std::ifstream(folder.path() / rank) >> input;
      CHECK(input == "/dev/null");
    }
    Program failing(in_shell(closing, "--num_processes 2", "echo a word; exit 3"));
    CHECK(failing.wait() == 3);
  }
}
