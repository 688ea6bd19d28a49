// SPDX-License-Identifier: Apache-2.0
#include "supervision/job_control.hpp"

#include "acc/base/error.hpp"
#include "acc/base/unique_fd.hpp"
#include "supervision/process_state.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <new>
#include <string>

namespace acc::launcher::supervision {
namespace {

/// True if the session has a controlling terminal: only then can /dev/tty be opened.
bool has_terminal() {
  return static_cast<bool>(UniqueFd(::open("/dev/tty", O_RDONLY | O_NOCTTY | O_CLOEXEC)));
}

}  // namespace

JobControl::JobControl() : guardian_(::getpid()), group_(has_terminal() ? ::getpgrp() : 0) {
  void* const memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    throw Error(Errc::process, std::string("mmap failed: ") + std::strerror(errno));
  }
  shared_ = new (memory) Shared;
}

void JobControl::set_leader(pid_t worker) const noexcept {
  shared_->stopped_by = 0;
  shared_->leader = worker;
}

void JobControl::stop(int signal) const noexcept {
  ++shared_->stops;
  shared_->stopped_by = signal;
  ::kill(guardian_, SIGCHLD);  // wakes the guardian, which then calls `follow_worker`
}

void JobControl::go_on() const noexcept {
  shared_->stopped_by = 0;
  ::kill(guardian_, SIGCONT);
}

bool JobControl::is_continued() const noexcept {
  return shared_->continued == shared_->stops;
}

bool JobControl::is_led() const noexcept {
  return shared_->leader != 0;
}

bool JobControl::stop_self(int signal) noexcept {
  sigset_t one;
  sigset_t before;
  sigemptyset(&one);
  sigaddset(&one, signal);
  ::raise(signal);
  ::sigprocmask(SIG_UNBLOCK, &one, &before);  // the process stops here until SIGCONT
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  // SIGCONT is blocked, and therefore still pending after it has continued the process.
  sigset_t pending;
  ::sigpending(&pending);
  return sigismember(&pending, SIGCONT) == 1;
}

void JobControl::follow_worker() const noexcept {
  if (const int signal = shared_->stopped_by.exchange(0); signal != 0) {
    const int stop = shared_->stops;
    const auto leader = process_state(shared_->leader);
    if (leader && leader->letter == 'T') {
      stop_self(signal);
    }
    shared_->continued = stop;
  }
}

}  // namespace acc::launcher::supervision
