#include "save_request.hpp"

#include <sys/time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <ctime>

namespace train_gpt {
namespace {

constexpr std::array kSignals = {SIGUSR1, SIGTERM, SIGALRM};
constexpr std::int64_t kNotInAStep = -1;

// What the handlers read and write.
std::atomic<bool> asked_to_save{false};
std::atomic<bool> asked_to_end{false};
std::atomic<std::int64_t> step_began{0};  // milliseconds
std::atomic<std::int64_t> longest_step{0};
std::atomic<bool> any_step{false};
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

std::int64_t now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000 + time.tv_nsec / 1'000'000;
}

/// Milliseconds that a step may still take when this process is to end; 0: its peers are lost.
std::int64_t patience() {
  const std::int64_t allowed = any_step ? 1000 + 2 * longest_step : 0;
  return std::max<std::int64_t>(0, allowed - (now() - step_began));
}

/// SIGALRM after so many milliseconds; 0: never.
void set_alarm(std::int64_t milliseconds) {
  itimerval timer{};
  timer.it_value = {milliseconds / 1000, milliseconds % 1000 * 1000};
  ::setitimer(ITIMER_REAL, &timer, nullptr);
}

void die(int /*signal*/) {
  ::signal(SIGTERM, SIG_DFL);
  ::raise(SIGTERM);
}

void on_save(int /*signal*/) {
  asked_to_save = true;
}

void on_end(int signal) {
  asked_to_end = true;
  if (step_began == kNotInAStep) {
    return;
  }
  if (const std::int64_t left = patience(); left > 0) {
    set_alarm(left);
  } else {
    die(signal);
  }
}

}  // namespace

SaveRequest::SaveRequest() {
  asked_to_save = asked_to_end = any_step = false;
  step_began = longest_step = 0;
  constexpr std::array handlers = {on_save, on_end, die};
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    struct sigaction action {};
    action.sa_handler = handlers[i];
    action.sa_flags = SA_RESTART;
    ::sigaction(kSignals[i], &action, &before_[i]);
  }
}

SaveRequest::~SaveRequest() {
  set_alarm(0);
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    ::sigaction(kSignals[i], &before_[i], nullptr);
  }
}

void SaveRequest::step_begins() {
  step_began = now();
}

int SaveRequest::agreed(acc::Runtime& runtime) {
  const std::array own = {asked_to_end ? 2.0 : asked_to_save ? 1.0 : 0.0};
  const std::vector<double> all = runtime.all_gather(own);
  const double most = *std::max_element(all.begin(), all.end());
  longest_step = std::max<std::int64_t>(longest_step, now() - step_began);
  step_began = kNotInAStep;
  any_step = true;
  set_alarm(0);
  return most == 2.0 ? SIGTERM : most == 1.0 ? SIGUSR1 : 0;
}

void SaveRequest::end_by(int signal) {
  ::signal(signal, SIG_DFL);
  ::raise(signal);
  std::abort();  // blocked
}

}  // namespace train_gpt
