// SPDX-License-Identifier: Apache-2.0
#include "supervision/cgroup.hpp"

#include "spawn/create_child.hpp"
#include "support/temporary_folder.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <fstream>

using namespace acc::launcher;

namespace {

namespace fs = std::filesystem;

const std::string kName = "acclaunch-test-" + std::to_string(::getpid());

fs::path group_folder() {
  return supervision::cgroup_folder("/proc/self/mountinfo",
                                    supervision::cgroup_name("/proc/self/cgroup")) /
         kName;
}

bool can_fork_into_group() {
  supervision::Cgroup group(kName);
  group.make();
  const pid_t child = group.fork_into();
  if (child == 0) {
    for (;;) {
      ::pause();
    }
  }
  pid_t member = 0;
  std::ifstream(group_folder() / "cgroup.procs") >> member;
  if (child > 0) {
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
  group.remove();
  return member == child;
}

}  // namespace

TEST_CASE("cgroup: the folder is found in every mount layout") {
  struct Case {
    const char* mounts;
    const char* groups;
    const char* expected;
  };
  const Case cases[] = {
      {"31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/user.slice/a\n",
       "/sys/fs/cgroup/user.slice/a"},
      {"31 23 0:28 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 none rw\n", "0::/\n",
       "/sys/fs/cgroup/"},
      {"32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
       "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
       "2:cpu:/b\n1:name=systemd:/\n0::/c\n", "/sys/fs/cgroup/unified/c"},
      {"31 23 0:28 /docker/a /sys/fs/cgroup rw - cgroup2 cgroup rw\n", "0::/docker/a/b\n",
       "/sys/fs/cgroup/b"},
      {"31 23 0:28 /docker/a /sys/fs/cgroup rw - cgroup2 cgroup rw\n", "0::/docker/a\n",
       "/sys/fs/cgroup"},
      {"31 23 0:28 /docker/a /sys/fs/cgroup rw - cgroup2 cgroup rw\n", "0::/docker/abc\n", ""},
      {"32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n", "1:cpu:/\n", ""},
      {"31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "1:cpu:/\n", ""},
      {"", "", ""},
  };
  const acc::test::TemporaryFolder folder;
  for (const auto& [mounts, groups, expected] : cases) {
    CAPTURE(mounts);
    CAPTURE(groups);
    std::ofstream(folder.path() / "mountinfo") << mounts;
    std::ofstream(folder.path() / "cgroup") << groups;
    CHECK(supervision::cgroup_folder(folder.path() / "mountinfo",
                                     supervision::cgroup_name(folder.path() / "cgroup")) ==
          expected);
  }
  CHECK(supervision::cgroup_folder(folder.path() / "absent",
                                   supervision::cgroup_name(folder.path() / "absent"))
            .empty());
}

TEST_CASE("cgroup: a process and its children are killed together, in two attempts" *
          doctest::skip(!can_fork_into_group())) {
  const fs::path folder = group_folder();
  supervision::Cgroup group(kName);
  for (int attempt = 0; attempt < 2; ++attempt) {
    group.make();
    const pid_t child = group.fork_into();
    if (child == 0) {
      ::setpgid(0, 0);
      ::fork();
      for (;;) {
        ::pause();
      }
    }
    ::setpgid(child, child);
    pid_t member = 0;
    std::ifstream(folder / "cgroup.procs") >> member;
    CHECK(member == child);
    group.remove();  // no effect: the group is in use
    CHECK(fs::exists(folder));
    group.kill();
    int status = 0;
    CHECK(::waitpid(child, &status, 0) == child);
    CHECK(WTERMSIG(status) == SIGKILL);
    std::string populated;
    do {
      std::ifstream events(folder / "cgroup.events");
      std::getline(events, populated);
    } while (populated != "populated 0");
    group.remove();
    CHECK_FALSE(fs::exists(folder));
  }
}

TEST_CASE("cgroup: a process can be forked if the group cannot be created") {
  supervision::Cgroup none("a/name/that/cannot/be/made");
  none.make();
  const pid_t child = none.fork_into();
  if (child == 0) {
    ::_exit(7);
  }
  none.kill();
  none.remove();
  int status = 0;
  CHECK(::waitpid(child, &status, 0) == child);
  CHECK(WEXITSTATUS(status) == 7);
}

TEST_CASE("cgroup: a process created below a group that was killed earlier stays alive" *
          doctest::skip(!can_fork_into_group())) {
  const fs::path folder = group_folder();
  fs::create_directory(folder);
  std::ofstream(folder / "cgroup.kill") << 1 << std::flush;
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    std::ofstream(folder / "cgroup.procs") << 0 << std::flush;
    supervision::Cgroup group("below");
    group.make();
    const pid_t child = group.fork_into();
    if (child == 0) {
      ::_exit(7);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    group.remove();
    ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
  }
  int status = 0;
  CHECK(::waitpid(launcher, &status, 0) == launcher);
  CHECK(WEXITSTATUS(status) == 7);
  std::error_code gone;  // a process that has ended may still be in the group for a moment
  while (!fs::remove(folder, gone) && gone == std::errc::device_or_resource_busy) {
  }
}

TEST_CASE("cgroup: a child is created in the group and runs before its parent continues") {
  struct Child {
    std::string path = "/proc/self/cgroup";
    std::array<char, 4096> groups{};
  };
  [[maybe_unused]] const bool is_created_in_group = can_fork_into_group();
  supervision::Cgroup group(kName);
  group.make();
  Child child;
  const pid_t pid = spawn::create_child(
      group.directory(),
      [](void* data) {
        auto& own = *static_cast<Child*>(data);
        const int file = ::open(own.path.c_str(), O_RDONLY | O_CLOEXEC);
        const bool is_read = ::read(file, own.groups.data(), own.groups.size() - 1) > 0;
        ::_exit(is_read ? 3 : 4);
      },
      &child);
  REQUIRE(pid > 0);
  int status = 0;
  CHECK(::waitpid(pid, &status, 0) == pid);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 3);
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  // The child wrote to the memory of its parent, which needs clone3() as well.
  const std::string groups(child.groups.data());
  CHECK((groups.find(kName) != std::string::npos) == is_created_in_group);
#endif
  group.remove();
}
