// SPDX-License-Identifier: Apache-2.0
#include "acc/base/own_process.hpp"

#include "acc/base/error.hpp"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace acc {
namespace {

/// Never destroyed: a hook may be left at the end of the process. The mutex is held during a fork,
/// so that the child finds the list complete.
struct Hooks {
  std::mutex mutex;
  std::vector<const ForkHook*> all;
};

Hooks& hooks() {
  static auto& hooks = *new Hooks;
  return hooks;
}

}  // namespace

std::uint32_t OwnProcess::forks_ = 0;

OwnProcess::OwnProcess() noexcept : fork_number_(forks_), pid_(::getpid()) {
  ForkHook::register_once();
}

void OwnProcess::refuse(const std::string& what) const {
  throw Error(Errc::invalid_argument,
              fmt::format("{} belongs to process {}; this is process {}, a child that fork made, "
                          "which has no part in the job: leave calls of the runtime and of its "
                          "groups to the parent, or start the child by another method (spawn)",
                          what, pid_, ::getpid()));
}

void ForkHook::register_once() {
  [[maybe_unused]] static const int registered = ::pthread_atfork(
      [] { hooks().mutex.lock(); }, [] { hooks().mutex.unlock(); }, &ForkHook::enter_child);
}

void ForkHook::enter_child() {
  ++OwnProcess::forks_;
  for (const ForkHook* hook : hooks().all) {
    hook->in_child_();
  }
  hooks().all.clear();
  hooks().mutex.unlock();
}

ForkHook::ForkHook(std::function<void()> in_child) : in_child_(std::move(in_child)) {
  register_once();
  const std::lock_guard lock(hooks().mutex);
  hooks().all.push_back(this);
}

ForkHook::~ForkHook() {
  const std::lock_guard lock(hooks().mutex);
  std::erase(hooks().all, this);
}

}  // namespace acc
