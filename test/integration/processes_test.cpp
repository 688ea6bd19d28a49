// The processes of a job: what they need, and what is left when some of them are killed or stopped.
#include "support/program.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"
#include "support/worker_family.hpp"

#include <doctest/doctest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>

using namespace acc::test;

namespace {

/// /bin/sh -c "before; exec acclaunch --cpu [flags] /bin/sh -c script"
std::vector<std::string> in_shell(const std::string& before, const std::string& flags,
                                  const std::string& script) {
  return {"/bin/sh", "-c",
          before + "; exec " ACC_BIN_DIR "/acclaunch --cpu " + flags + " /bin/sh -c \"$0\"",
          script};
}

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
    group_ = control_group();
  }

  Program& program() { return job_; }
  [[nodiscard]] pid_t guardian() const { return above_[0]; }
  [[nodiscard]] pid_t keeper() const { return above_[1]; }
  [[nodiscard]] pid_t supervisor() const { return above_[2]; }
  [[nodiscard]] const std::filesystem::path& group() const { return group_; }

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
  /// Of a worker, if it has one of its own.
  std::filesystem::path control_group() const {
    std::ifstream lines("/proc/" + std::to_string((*family_)[0]) + "/cgroup");
    for (std::string line; std::getline(lines, line);) {
      if (contains(line, "/acclaunch-" + std::to_string(job_.pid()))) {
        for (const char* mount : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
          if (std::filesystem::path path = mount + line.substr(3); std::filesystem::exists(path)) {
            return path;
          }
        }
      }
    }
    return {};
  }

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
