// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "timing.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <functional>
#include <new>
#include <stdexcept>

/// Processes that work on parts of one task at the same time, and measurement of their time.
namespace acc::bench {

class Team {
 public:
  explicit Team(int processes) : processes_(processes) {
    void* const memory = ::mmap(nullptr, sizeof(pthread_barrier_t), PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      throw std::bad_alloc();
    }
    barrier_ = static_cast<pthread_barrier_t*>(memory);
    pthread_barrierattr_t shared;
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(barrier_, &shared, static_cast<unsigned>(processes));
  }

  [[nodiscard]] int size() const noexcept { return processes_; }

  /// Waits for all other processes.
  void wait() const { pthread_barrier_wait(barrier_); }

  /// Wall-clock seconds from the common start to the end of the last process, and CPU seconds of
  /// this process, which depend less on other load. Measured in every process.
  struct Time {
    double wall = 0, cpu = 0;
  };
  [[nodiscard]] Time timed(const std::function<void()>& work) const {
    wait();
    const auto begin = std::chrono::steady_clock::now();
    const std::clock_t cpu = std::clock();
    work();
    const std::clock_t cpu_end = std::clock();
    wait();
    return {std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(),
            static_cast<double>(cpu_end - cpu) / CLOCKS_PER_SEC};
  }

  /// Runs body(rank) in the given number of child processes and waits for them. Returns false if
  /// one failed; then the program should end, which also ends the other children
  /// (PR_SET_PDEATHSIG).
  bool run(const std::function<void(int rank)>& body) const {
    for (int rank = 0; rank < processes_; ++rank) {
      std::fflush(stdout);
      const pid_t child = ::fork();
      if (child == 0) {
        // If one child fails, the parent ends, and the others must not wait at the barrier for
        // ever.
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        try {
          body(rank);
          std::fflush(stdout);
          ::_exit(0);
        } catch (const std::exception& error) {
          std::fprintf(stderr, "process %d: %s\n", rank, error.what());
          ::_exit(1);
        }
      }
    }
    bool good = true;
    for (int ended = 0; good && ended < processes_; ++ended) {
      int status = 0;
      good = ::waitpid(-1, &status, 0) > 0 && status == 0;
    }
    return good;
  }

 private:
  int processes_;
  pthread_barrier_t* barrier_;
};

}  // namespace acc::bench
