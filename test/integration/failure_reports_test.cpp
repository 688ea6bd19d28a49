// SPDX-License-Identifier: Apache-2.0
// Failure reports after real failures of workers.
#include "support/acclaunch.hpp"
#include "support/gate.hpp"
#include "support/program.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

using namespace acc::test;
namespace fs = std::filesystem;

namespace {

constexpr const char* kFaultyWorker = ACC_BIN_DIR "/faulty_worker";

/// Worker 1 runs `script`, worker 0 waits.
std::vector<std::string> job(const InShell& shell, const std::string& script) {
  return in_shell("[ $RANK = 0 ] && exec sleep 1000\n" + script, shell);
}

/// A control group limited to 64 MiB, without swap if that can be configured.
class SmallGroup {
 public:
  SmallGroup() {
    for (const char* top : {"/sys/fs/cgroup/memory", "/sys/fs/cgroup"}) {
      const fs::path folder = fs::path(top) / ("acc-test-" + std::to_string(::getpid()));
      if (path_.empty() && ::mkdir(folder.c_str(), 0755) == 0) {
        path_ = folder;
        const bool limited =
            write("memory.limit_in_bytes", "67108864") || write("memory.max", "67108864");
        write("memory.swappiness", "0");
        write("memory.swap.max", "0");
        if (!limited) {
          remove();
        }
      }
    }
  }
  SmallGroup(const SmallGroup&) = delete;
  SmallGroup& operator=(const SmallGroup&) = delete;
  ~SmallGroup() { remove(); }

  explicit operator bool() const { return !path_.empty(); }
  [[nodiscard]] std::string name() const { return "/" + path_.filename().string(); }
  /// Returns a shell command that moves the shell itself into the group.
  [[nodiscard]] std::string entry() const {
    return "echo $$ > " + path_.string() + "/cgroup.procs";
  }

 private:
  bool write(const char* file, const char* value) const {
    return fs::exists(path_ / file) && (std::ofstream(path_ / file) << value << std::flush).good();
  }
  void remove() {
    if (!path_.empty()) {
      ::rmdir(path_.c_str());
    }
    path_.clear();
  }

  fs::path path_;
};

bool can_limit_memory() {
  return static_cast<bool>(SmallGroup());
}

bool can_read_kernel_log() {
  std::error_code error;
  return ::access("/dev/kmsg", R_OK) == 0 &&
         fs::read_symlink("/proc/self/ns/pid", error) == "pid:[4026531836]";
}

bool can_make_pid_namespaces() {
  return Program({"/usr/bin/unshare", "-pf", "--mount-proc", "/bin/true"}).wait() == 0;
}

bool dumps_core_into_working_directory() {
  return file_text("/proc/sys/kernel/core_pattern") == "core\n" && ::geteuid() == 0;
}

}  // namespace

TEST_CASE("failure report: an out-of-memory kill that the kernel log names" *
          doctest::skip(!can_limit_memory() || !can_read_kernel_log())) {
  const SmallGroup group;
  Program program(job({}, group.entry() + "; exec " + kFaultyWorker + " touch 200"));
  CHECK(program.wait() == 128 + SIGKILL);
  CAPTURE(program.err());
  CHECK(contains(program.err(), "the job failed: rank 1: killed by SIGKILL (signal 9)\n"));
  CHECK(contains(program.err(), "  cause     killed by the kernel: out of memory (OOM); 6"));
  // The kernel limits the line with the group's name to ten in five seconds.
  CHECK((contains(program.err(),
                  " MiB resident, the limit of cgroup " + group.name() + " is 64 MiB\n") ||
         contains(program.err(), " MiB resident, the memory limit of its cgroup\n")));
}

TEST_CASE("failure report: an out-of-memory kill in a container" *
          doctest::skip(!can_limit_memory() || !can_make_pid_namespaces())) {
  const SmallGroup group;
  Program program(job({.before = group.entry(), .wrapper = "unshare -pf --mount-proc "},
                      std::string("exec ") + kFaultyWorker + " touch 200"));
  CHECK(program.wait() == 128 + SIGKILL);
  CAPTURE(program.err());
  CHECK(
      contains(program.err(),
               "  cause     probably killed by the kernel: out of memory (OOM); its cgroup counts "
               "1 OOM kill since the start; its peak memory was "));
  CHECK(contains(program.err(), " MiB; the limit of its cgroup is 64 MiB\n"));
}

TEST_CASE("failure report: a SIGKILL of another process is not reported as out of memory") {
  Program program(job({}, "kill -KILL $$"));
  CHECK(program.wait() == 128 + SIGKILL);
  CHECK_FALSE(contains(program.err(), "killed by the kernel"));
}

TEST_CASE("failure report: a signal that acclaunch passed on is reported as such") {
  Program job({std::string(ACC_BIN_DIR) + "/acclaunch", "--cpu", "--num_processes", "2", "/bin/sh",
               "-c", "echo worker-up; exec sleep 1000"});
  job.wait_for_text("worker-up", 2);
  job.signal(SIGXCPU);
  CHECK(job.wait() == 128 + SIGXCPU);
  CHECK(contains(job.err(), "  cause     acclaunch got SIGXCPU and passed it on to all workers\n"));
}

TEST_CASE("failure report: two workers that fail at the same moment both failed by themselves") {
  for (int round = 0; round < 5; ++round) {
    const Gate gate;
    // Rank 0 ends while the kernel still frees the memory of rank 1, which has called _exit: its
    // flags in /proc/PID/stat have PF_EXITING, 4.
    Program program(in_shell("[ $RANK = 1 ] && exec " + std::string(kFaultyWorker) +
                             " exit 300 $GATE\n"
                             "read -r pid < $GATE\n"
                             "until [ $((flags & 4)) != 0 ]; do\n"
                             "  read -r _ _ _ _ _ _ _ _ flags _ < /proc/$pid/stat || break\n"
                             "done\n"
                             "exit 3"),
                    {{"GATE", gate.path()}});
    const int status = program.wait();
    CAPTURE(program.err());
    CHECK((status == 3 || status == 1));
    CHECK_FALSE(contains(program.err(), "asked it to end"));
  }
}

TEST_CASE("failure report: a segmentation fault without a core dump") {
  Program program(
      job({.before = "ulimit -c 0"}, std::string("exec ") + kFaultyWorker + " segfault"));
  CHECK(program.wait() == 128 + SIGSEGV);
  CAPTURE(program.err());
  CHECK(contains(program.err(), "the job failed: rank 1: killed by SIGSEGV (signal 11)\n"));
  CHECK(contains(program.err(),
                 "  cause     no core dump: the limit on core files is 0 (raise it by "
                 "ulimit -c unlimited)\n"));
  CHECK(contains(program.err(), "  its last lines on stderr:\n    | about to fail\n"));
}

TEST_CASE("failure report: a segmentation fault with a core dump" *
          doctest::skip(!dumps_core_into_working_directory())) {
  const TemporaryFolder folder;
  Program program(job({.before = "ulimit -c unlimited; cd " + folder.path().string()},
                      std::string("exec ") + kFaultyWorker + " segfault"));
  CHECK(program.wait() == 128 + SIGSEGV);
  CAPTURE(program.err());
  CHECK(contains(program.err(), "killed by SIGSEGV (signal 11), core dumped\n"));
  CHECK(contains(program.err(),
                 "  cause     core dump in " + (folder.path() / "core").string() + "\n"));
  CHECK(fs::file_size(folder.path() / "core") > 0);
}

TEST_CASE("failure report: an unreadable error file does not delay the report") {
  Program program(job({}, "mkfifo $TORCHELASTIC_ERROR_FILE; exit 3"));
  CHECK(program.wait() == 3);
  CHECK(contains(program.err(), ".error.json is not a regular file)\n"));
  Program huge(job({}, "truncate -s 100G $TORCHELASTIC_ERROR_FILE; exit 3"));
  CHECK(huge.wait() == 3);
  CHECK(contains(huge.err(), ".error.json is larger than 1 MiB)\n"));
}

TEST_CASE("failure report: the launcher's own error file") {
  const TemporaryFolder folder;
  const std::string own = (folder.path() / "own.json").string();
  const std::pair<const char*, const char*> cases[] = {
      {R"(echo '{"message": {"message": "E: x", "extraInfo": {"timestamp": "1"}}}' )"
       "> $TORCHELASTIC_ERROR_FILE; exit 3",
       R"({"message":{"message":"E: x","extraInfo":{"timestamp":"1"},"errorCode":3}})"},
      {"kill -ABRT $$", R"({"message":{"message":"killed by SIGABRT (signal 6))"}};
  for (const auto& [script, expected] : cases) {
    Program program(job({.before = "ulimit -c 0"}, script), {{"TORCHELASTIC_ERROR_FILE", own}});
    CHECK(program.wait() != 0);
    const std::string text = file_text(own);
    CAPTURE(text);
    CHECK(text.starts_with(expected));
  }
}
