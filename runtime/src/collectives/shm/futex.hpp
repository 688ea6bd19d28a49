// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

namespace acc::collectives {

/// Sleeps until `word` differs from `seen`, a wake-up, a signal, or the end of `limit`. May return
/// early, so callers check their condition again. The futex is not FUTEX_PRIVATE: it works between
/// processes that map the same memory.
inline void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
                       std::chrono::nanoseconds limit) noexcept {
  const timespec time{.tv_sec = static_cast<time_t>(limit.count() / 1'000'000'000),
                      .tv_nsec = static_cast<long>(limit.count() % 1'000'000'000)};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &time, nullptr, 0);
}

/// Wakes all threads of all processes that sleep on `word`.
inline void futex_wake_all(const std::atomic<std::uint32_t>& word) noexcept {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

/// Tells the CPU that this is a spin loop (PAUSE), which leaves more of the core to its
/// hyperthread.
inline void pause_cpu() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace acc::collectives
