// SPDX-License-Identifier: Apache-2.0
#include "spawn/create_child.hpp"

#include "acc/base/unique_fd.hpp"

#include <linux/sched.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define ACC_SHARES_MEMORY_WITH_CHILD
#endif

namespace acc::launcher::spawn {
namespace {

/// Writing a pid to cgroup.procs waits for an RCU grace period, 6 to 16 ms on Linux 6.18.
/// CLONE_INTO_CGROUP (Linux 5.7) creates the process in the group at the cost of a fork.
clone_args arguments(int cgroup) noexcept {
  clone_args how{};
  how.exit_signal = SIGCHLD;
  if (cgroup >= 0) {
    how.flags = CLONE_INTO_CGROUP;
    how.cgroup = static_cast<__u64>(cgroup);
  }
  return how;
}

#if defined(ACC_SHARES_MEMORY_WITH_CHILD)
/// Calls clone3(). The child starts on its own stack with `body(data)`, which does not return: it
/// must not touch the frames that this thread continues in.
long clone_on_stack(clone_args& how, void (*body)(void*), void* data) noexcept {
  long result = SYS_clone3;
  register void (*function)(void*) __asm__("r8") = body;
  register void* argument __asm__("r9") = data;
  __asm__ volatile(
      "syscall\n\t"
      "test %%rax, %%rax\n\t"
      "jnz 1f\n\t"
      "xor %%ebp, %%ebp\n\t"  // the end of the frames, for debuggers
      "mov %%r9, %%rdi\n\t"
      "call *%%r8\n\t"
      "ud2\n"
      "1:"
      : "+a"(result)
      : "D"(&how), "S"(sizeof how), "r"(function), "r"(argument)
      : "rcx", "r11", "memory", "cc");
  return result;
}
#endif

}  // namespace

pid_t fork_into(int cgroup) noexcept {
  clone_args how = arguments(cgroup);
  const long pid = cgroup >= 0 ? ::syscall(SYS_clone3, &how, sizeof how) : -1;
  return pid >= 0 ? static_cast<pid_t>(pid) : ::fork();
}

pid_t create_child(int cgroup, void (*body)(void*), void* data) noexcept {
#if defined(ACC_SHARES_MEMORY_WITH_CHILD)
  constexpr std::size_t kStack = std::size_t{64} << 10;
  alignas(16) std::array<std::byte, kStack> stack;  // NOLINT: only the child's pages are touched
  clone_args how = arguments(cgroup);
  how.flags |= CLONE_VM | CLONE_VFORK;
  how.stack = reinterpret_cast<std::uintptr_t>(stack.data());
  how.stack_size = stack.size();
  const long pid = clone_on_stack(how, body, data);
  if (pid > 0) {
    return static_cast<pid_t>(pid);
  }
  // No clone3() (before Linux 5.3, some sandboxes), or no place in the group.
#endif
  const pid_t child = fork_into(cgroup);
  if (child == 0) {
    body(data);
    ::_exit(127);
  }
  return child;
}

std::optional<int> reap_within(pid_t pid, std::chrono::milliseconds limit) noexcept {
  using Clock = std::chrono::steady_clock;
  // Poll interval without pidfd_open(), and for a child that a debugger must wait for first.
  constexpr std::chrono::milliseconds kPause{5};
  const auto deadline = Clock::now() + limit;
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  for (bool has_ended = !pidfd;;) {
    int status = 0;
    const pid_t reaped = ::waitpid(pid, &status, WNOHANG);
    if (reaped == pid) {
      return status;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if ((reaped < 0 && errno != EINTR) || left.count() <= 0) {
      return std::nullopt;
    }
    pollfd end{.fd = has_ended ? -1 : pidfd.get(), .events = POLLIN, .revents = 0};
    has_ended |=
        ::poll(&end, 1, static_cast<int>((has_ended ? std::min(left, kPause) : left).count())) > 0;
  }
}

bool is_child(pid_t pid) noexcept {
  siginfo_t info{};
  return pid > 0 &&
         ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

}  // namespace acc::launcher::spawn
