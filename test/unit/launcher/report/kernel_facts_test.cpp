// SPDX-License-Identifier: Apache-2.0
#include "report/kernel_facts.hpp"

#include "supervision/cgroup.hpp"
#include "support/temporary_folder.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>

using namespace acc::launcher;
namespace fs = std::filesystem;
using Kind = supervision::ProcessEnd::Kind;

namespace {

/// Simulated root folder with the files of /proc, /sys and /dev that KernelFacts reads.
class FakeRoot {
 public:
  FakeRoot() {
    write("proc/vmstat", "nr_free_pages 1\noom_kill 7\n");
    write("proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\n");
    write("proc/sys/kernel/core_pattern", "core\n");
    write("proc/sys/kernel/core_uses_pid", "0\n");
  }
  [[nodiscard]] fs::path path(const std::string& name = "") const { return folder_.path() / name; }
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories(path(name).parent_path());
    std::ofstream(path(name)) << text;
  }
  void append(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::app) << text;
  }
  void add_cgroup1(const std::string& name, int kills, const std::string& limit) const {
    write("proc/self/mountinfo",
          "34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
          "35 31 0:32 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n"
          "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    write("proc/self/cgroup", "4:memory:" + name + "\n3:cpuset:/\n0::/\n");
    const std::string folder = "sys/fs/cgroup/memory" + name;
    write(folder + "/memory.oom_control",
          "oom_kill_disable 0\nunder_oom 0\noom_kill " + std::to_string(kills) + "\n");
    write(folder + "/memory.limit_in_bytes", limit + "\n");
    write(folder + "/cgroup.procs", "");
    write("sys/fs/cgroup/unified/cgroup.procs", "");
  }
  /// Adds a group whose parent, but not the group itself, has the memory controller enabled.
  void add_cgroup2(int kills, const std::string& limit) const {
    write("proc/self/mountinfo", "41 31 0:38 /box /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    write("proc/self/cgroup", "0::/box/job/leaf\n");
    write("sys/fs/cgroup/job/memory.events",
          "low 0\nhigh 0\nmax 3\noom 1\noom_kill " + std::to_string(kills) + "\n");
    write("sys/fs/cgroup/job/memory.max", "max\n");
    write("sys/fs/cgroup/memory.max", limit + "\n");
    for (const char* folder : {"", "job/", "job/leaf/"}) {
      write("sys/fs/cgroup/" + std::string(folder) + "cgroup.procs", "");
    }
  }
  void add_log(const std::string& pid_namespace) const {
    fs::create_directories(path("proc/self/ns"));
    fs::create_symlink(pid_namespace, path("proc/self/ns/pid"));
    write("dev/kmsg", "6,1,1,-;Out of memory: Killed process 4711 (old) anon-rss:1kB\n");
  }

 private:
  acc::test::TemporaryFolder folder_;
};

constexpr const char* kFirstPidNamespace = "pid:[4026531836]";
constexpr std::int64_t kGiB = std::int64_t{1} << 30;

supervision::WorkerRecord killed_by(int signal, bool core_dumped = false) {
  supervision::WorkerRecord worker;
  worker.pid = 4711;
  worker.end = supervision::ProcessEnd{Kind::killed, signal, core_dumped};
  worker.peak_memory = 8 * kGiB - kGiB / 10;
  return worker;
}

const std::string kNotForMemory =
    "SIGKILL came neither from acclaunch nor from the kernel's out-of-memory (OOM) killer";

}  // namespace

TEST_CASE("an out-of-memory kill that the kernel log reports") {
  const FakeRoot root;
  root.add_cgroup1("/job", 0, "9223372036854771712");
  root.add_cgroup1("/job/limited", 0, "8589934592");
  root.add_log(kFirstPidNamespace);
  const report::KernelFacts facts(root.path());
  root.write("proc/vmstat", "oom_kill 8\n");                    // a kill in another job
  CHECK(facts.cause(killed_by(SIGKILL), "") == kNotForMemory);  // the log entry is older
  root.append(
      "dev/kmsg",
      "6,2,2,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
      "oom_memcg=/job/limited,task_memcg=/job/limited/1,task=python3,pid=4711,uid=0\n"
      " SUBSYSTEM=memory\n"
      "3,3,3,-;Memory cgroup out of memory: Killed process 4711 (python3) "
      "total-vm:9000000kB, anon-rss:8283750kB, file-rss:6580kB, shmem-rss:0kB, UID:0\n"
      "3,4,4,-;Out of memory: Killed process 47110 (python3) total-vm:1kB, "
      "anon-rss:1048576kB, file-rss:0kB, shmem-rss:1048576kB, UID:0\n");
  CHECK(facts.cause(killed_by(SIGKILL), "") ==
        "killed by the kernel: out of memory (OOM); 7.9 GiB resident, the limit of cgroup "
        "/job/limited is 8 GiB");
  supervision::WorkerRecord other = killed_by(SIGKILL);
  other.pid = 47110;
  CHECK(facts.cause(other, "") ==
        "killed by the kernel: out of memory (OOM); 2 GiB resident, the machine has 16 GiB");
  root.append("dev/kmsg",
              "3,5,5,-;Memory cgroup out of memory: Killed process 4800 (python3) total-vm:1kB, "
              "anon-rss:1048576kB, file-rss:0kB, shmem-rss:0kB, UID:0\n");  // no oom-kill line
  other.pid = 4800;
  CHECK(facts.cause(other, "") ==
        "killed by the kernel: out of memory (OOM); 1 GiB resident, the memory limit of its "
        "cgroup");
  other.pid = 471;
  CHECK(facts.cause(other, "") == kNotForMemory);
  supervision::WorkerRecord ours = killed_by(SIGKILL);
  ours.told_to_end = true;
  CHECK(facts.cause(ours, "").empty());
  CHECK(facts.cause(killed_by(SIGTERM), "").empty());
}

TEST_CASE("an out-of-memory kill that only kernel counters report") {
  SUBCASE("cgroup version 1") {
    const FakeRoot root;
    root.add_cgroup1("/job", 3, "8589934592");
    const report::KernelFacts facts(root.path());
    root.add_cgroup1("/job", 4, "8589934592");
    CHECK(facts.cause(killed_by(SIGKILL), "") ==
          "probably killed by the kernel: out of memory (OOM); its cgroup counts 1 OOM kill since "
          "the start; its peak memory was 7.9 GiB; the limit of its cgroup is 8 GiB");
  }
  SUBCASE("cgroup version 2, in a container") {
    const FakeRoot root;
    root.add_cgroup2(0, "8589934592");
    root.add_log("pid:[4026532000]");  // a container: the kernel log has other process IDs
    const report::KernelFacts facts(root.path());
    root.append("dev/kmsg", "3,3,3,-;Out of memory: Killed process 4711 (x) anon-rss:1kB\n");
    CHECK(facts.cause(killed_by(SIGKILL), "") == kNotForMemory);
    root.add_cgroup2(2, "8589934592");
    CHECK(facts.cause(killed_by(SIGKILL), "") ==
          "probably killed by the kernel: out of memory (OOM); its cgroup counts 2 OOM kills since "
          "the start; its peak memory was 7.9 GiB; the limit of its cgroup is 8 GiB");
  }
  SUBCASE("only the counter of the machine") {
    const FakeRoot root;
    const report::KernelFacts facts(root.path());
    root.write("proc/vmstat", "oom_kill 8\n");
    supervision::WorkerRecord worker = killed_by(SIGKILL);
    worker.peak_memory = 0;
    CHECK(facts.cause(worker, "") ==
          "perhaps killed by the kernel: out of memory (OOM); the machine counts 1 OOM kill since "
          "the start");
  }
  SUBCASE("no counter") {
    const acc::test::TemporaryFolder nothing;
    CHECK(report::KernelFacts(nothing.path()).cause(killed_by(SIGKILL), "").empty());
  }
}

TEST_CASE("a worker that could not be killed: the cause is its process state") {
  const acc::test::TemporaryFolder nothing;
  supervision::WorkerRecord worker;
  worker.stuck = "in uninterruptible sleep (nfs_wait_bit)";
  CHECK(report::KernelFacts(nothing.path()).cause(worker, "") == worker.stuck);
}

TEST_CASE("the folder of a control group") {
  const FakeRoot root;
  const fs::path mountinfo = root.path("proc/self/mountinfo");
  const fs::path cgroup = root.path("proc/self/cgroup");
  root.add_cgroup1("/job", 0, "1");
  CHECK(supervision::cgroup_name(cgroup) == "/");
  CHECK(supervision::cgroup_name(cgroup, "memory") == "/job");
  CHECK(supervision::cgroup_name(cgroup, "pids").empty());
  CHECK(supervision::cgroup_folder(mountinfo, "/") == "/sys/fs/cgroup/unified/");
  CHECK(supervision::cgroup_folder(mountinfo, "/job", "memory") == "/sys/fs/cgroup/memory/job");
  CHECK(supervision::cgroup_folder(mountinfo, "/job", "mem").empty());
  root.add_cgroup2(0, "1");
  CHECK(supervision::cgroup_folder(mountinfo, "/box/job") == "/sys/fs/cgroup/job");
  CHECK(supervision::cgroup_folder(mountinfo, "/boxes/job").empty());
  CHECK(report::MemoryCgroup(root.path()).limit() == 1);
}

TEST_CASE("names of core files by kernel.core_pattern") {
  struct Case {
    const char* pattern;
    bool adds_pid;
    const char* glob;
  };
  const Case cases[] = {
      {"core", false, "core"},        {"core", true, "core.4711"},
      {"core.%p", true, "core.4711"}, {"/var/%e-%p.%t%%", false, "/var/*-4711.*%"},
      {"c?re[%", false, "c\\?re\\["}, {"", true, ".4711"}};
  for (const auto& [pattern, adds_pid, glob] : cases) {
    CHECK(report::core_file_glob(pattern, 4711, adds_pid) == glob);
  }
}

TEST_CASE("the location of a core dump") {
  const FakeRoot root;
  const fs::path folder = root.path("work [1]");
  fs::create_directories(folder);
  std::ofstream(folder / "core") << "of yesterday";
  fs::last_write_time(folder / "core", fs::file_time_type::clock::now() - std::chrono::hours(24));
  const report::KernelFacts facts(root.path());
  const auto cause = [&] { return facts.cause(killed_by(SIGSEGV, true), folder); };
  CHECK(cause() == "core dump written, but not found; kernel.core_pattern is \"core\"");
  std::ofstream(folder / "core") << "new";
  CHECK(cause() == "core dump in " + (folder / "core").string());
  root.write("proc/sys/kernel/core_pattern", root.path("dumps/%e.%p.%t").string());
  root.write("dumps/python3.4712.123", "");
  CHECK(cause().starts_with("core dump written"));
  root.write("dumps/python3.4711.123", "");
  CHECK(cause() == "core dump in " + root.path("dumps/python3.4711.123").string());
  root.write("proc/sys/kernel/core_pattern", "|/usr/lib/systemd/systemd-coredump %P %u\n");
  CHECK(cause() ==
        "core dump passed to /usr/lib/systemd/systemd-coredump; see coredumpctl info 4711");
  root.write("proc/sys/kernel/core_pattern", "|/bin/crash\n");
  CHECK(cause() == "core dump passed to /bin/crash");
}

TEST_CASE("signals with a usual cause") {
  const FakeRoot root;
  const report::KernelFacts facts(root.path());
  const auto cause = [&](int signal) { return facts.cause(killed_by(signal, true), ""); };
  CHECK(cause(SIGXCPU).starts_with("it exceeded the limit on CPU time (ulimit -t); core dump "));
  CHECK(cause(SIGSYS).starts_with("it made a system call that a seccomp filter forbids; "));
  CHECK(cause(SIGBUS).starts_with("core dump "));  // /dev/shm does not exist
  fs::create_directories(root.path("dev/shm"));
  CHECK(cause(SIGBUS).starts_with("perhaps /dev/shm was full; its size is "));
  CHECK(cause(SIGTERM).empty());
  supervision::WorkerRecord ours = killed_by(SIGABRT, true);
  ours.told_to_end = true;
  CHECK(facts.cause(ours, "").empty());
}

TEST_CASE("the reason for a missing core dump") {
  const FakeRoot root;
  const report::KernelFacts facts(root.path());
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_CORE, &before) == 0);
  const rlimit none{0, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_CORE, &none) == 0);
  CHECK(facts.cause(killed_by(SIGABRT), "") ==
        "no core dump: the limit on core files is 0 (raise it by ulimit -c unlimited)");
  CHECK(facts.cause(killed_by(SIGTERM), "").empty());
  const rlimit most{before.rlim_max, before.rlim_max};
  if (before.rlim_max != 0) {
    REQUIRE(::setrlimit(RLIMIT_CORE, &most) == 0);
    CHECK(facts.cause(killed_by(SIGABRT), "") ==
          "no core dump, although the limit (ulimit -c) allows one; kernel.core_pattern is "
          "\"core\"");
  }
  REQUIRE(::setrlimit(RLIMIT_CORE, &before) == 0);
}
