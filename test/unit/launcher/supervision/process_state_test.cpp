// SPDX-License-Identifier: Apache-2.0
#include "supervision/process_state.hpp"

#include "supervision/process_handle.hpp"
#include "support/temporary_folder.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>

using namespace acc::launcher;
using namespace std::chrono_literals;

namespace {

namespace fs = std::filesystem;

class FakeProc {
 public:
  void write(pid_t pid, char letter, const std::string& wchan, int times_run) const {
    const fs::path process = folder_.path() / std::to_string(pid);
    fs::create_directories(process);
    std::ofstream(process / "stat") << pid << " (a) (b)) " << letter << " 4 5 6";
    std::ofstream(process / "wchan") << wchan;
    std::ofstream(process / "schedstat") << "100 200 " << times_run;
  }

  [[nodiscard]] const fs::path& path() const { return folder_.path(); }

 private:
  acc::test::TemporaryFolder folder_;
};

}  // namespace

TEST_CASE("process state: name, state letter and parent, for a name with parentheses") {
  const FakeProc proc;
  proc.write(17, 'D', "nfs_wait_bit", 1);
  const auto state = supervision::process_state(17, proc.path());
  REQUIRE(state.has_value());
  CHECK(state->name == "a) (b)");
  CHECK(state->letter == 'D');
  CHECK(state->parent == 4);
  CHECK_FALSE(supervision::process_state(18, proc.path()).has_value());
  CHECK(supervision::process_state(::getpid())->parent == ::getppid());
}

TEST_CASE("process state: description, with the kernel function if it is readable") {
  const FakeProc proc;
  proc.write(17, 'D', "nfs_wait_bit", 1);
  proc.write(18, 'D', "0", 1);
  proc.write(19, 'S', "", 1);
  proc.write(20, 'X', "", 1);
  CHECK(supervision::describe_state(17, proc.path()) == "in uninterruptible sleep (nfs_wait_bit)");
  CHECK(supervision::describe_state(18, proc.path()) == "in uninterruptible sleep");
  CHECK(supervision::describe_state(19, proc.path()) == "sleeping");
  CHECK(supervision::describe_state(20, proc.path()) == "in state X");
  CHECK(supervision::describe_state(21, proc.path()).empty());
}

TEST_CASE("process state: a process is stuck if every sample finds uninterruptible sleep") {
  const FakeProc proc;
  const supervision::StuckWatch::Clock::time_point start;
  supervision::StuckWatch watch(10s, proc.path());
  const auto look = [&](std::chrono::seconds at) { return watch.is_stuck(17, start + at); };
  proc.write(17, 'D', "", 1);
  CHECK_FALSE(look(0s));
  CHECK_FALSE(look(9s));
  CHECK(look(10s));
  CHECK(look(11s));
  proc.write(17, 'R', "", 2);  // it runs again
  CHECK_FALSE(look(12s));
  proc.write(17, 'D', "", 2);
  CHECK_FALSE(look(13s));
  CHECK_FALSE(look(22s));
  proc.write(17, 'D', "", 3);  // a slow disk: it ran between the samples
  CHECK_FALSE(look(23s));
  CHECK_FALSE(look(32s));
  CHECK(look(33s));
  CHECK_FALSE(watch.is_stuck(18, start + 99s));
}

TEST_CASE("process state: a signal with the default action ends a process") {
  const struct {
    const char* what;
    void (*prepare)();
    bool ends;
  } cases[] = {
      {"default", [] {}, true},
      {"ignored", [] { std::signal(SIGTERM, SIG_IGN); }, false},
      {"caught", [] { std::signal(SIGTERM, [](int) {}); }, false},
      {"blocked",
       [] {
         sigset_t signals;
         ::sigemptyset(&signals);
         ::sigaddset(&signals, SIGTERM);
         ::sigprocmask(SIG_BLOCK, &signals, nullptr);
       },
       false},
  };
  for (const auto& each : cases) {
    CAPTURE(each.what);
    std::array<int, 2> ready{};
    REQUIRE(::pipe2(ready.data(), O_CLOEXEC) == 0);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      std::signal(SIGTERM, SIG_DFL);
      each.prepare();
      ::write(ready[1], "", 1) == 1 ? ::pause() : 0;
      ::_exit(0);
    }
    char byte = 0;
    REQUIRE(::read(ready[0], &byte, 1) == 1);
    CHECK(supervision::has_default_action(child, SIGTERM) == each.ends);
    CHECK(supervision::has_default_action(child, SIGUSR1));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    ::close(ready[0]);
    ::close(ready[1]);
    CHECK_FALSE(supervision::has_default_action(child, SIGTERM));
  }
}

TEST_CASE("a handle belongs to one process, also when its number is free again") {
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
  }
  const supervision::ProcessHandle handle(child);
  REQUIRE(handle);
  CHECK(handle.is_alive());
  CHECK(handle.sees_own_files());
  const auto user = handle.user();
  REQUIRE(user.has_value());
  CHECK(user->uid == ::geteuid());
  CHECK(user->is_own());
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  CHECK_FALSE(handle.is_alive());
  CHECK(handle.read("environ").empty());
  CHECK_FALSE(handle.user().has_value());
  CHECK_FALSE(supervision::ProcessHandle(child));
}

TEST_CASE("a program with the rights of another user than its caller has no user") {
  if (::geteuid() != 0) {
    MESSAGE("skipped: only root can make a process of another user");
    return;
  }
  const acc::test::TemporaryFolder folder;
  REQUIRE(::chmod(folder.path().c_str(), 0755) == 0);
  for (const mode_t mode : {0755, 04755, 02755}) {
    CAPTURE(mode);
    const std::string program = folder.path() / ("program" + std::to_string(mode));
    std::filesystem::copy_file("/bin/sleep", program);
    REQUIRE(::chmod(program.c_str(), mode) == 0);
    std::array<int, 2> ends{};  // closed by exec
    REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
    const pid_t child = ::fork();
    if (child == 0) {
      if (::setgid(65534) == 0 && ::setuid(65534) == 0) {
        ::execl(program.c_str(), "sleep", "1000", nullptr);
      }
      ::_exit(1);
    }
    ::close(ends[1]);
    char byte = 0;
    CHECK(::read(ends[0], &byte, 1) == 0);
    ::close(ends[0]);
    const auto user = supervision::ProcessHandle(child).user();
    CHECK(user.has_value() == (mode == 0755));
    CHECK((!user || user->uid == 65534));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
}
