// SPDX-License-Identifier: Apache-2.0
#include "cuda/nccl/nccl_watch.hpp"

#include <chrono>
#include <utility>

namespace acc::cuda {
namespace {

constexpr std::chrono::milliseconds kInterval{100};

}  // namespace

NcclWatch& NcclWatch::instance() {
  static auto* const the_watch = new NcclWatch;  // never destroyed: groups may be left at exit
  return *the_watch;
}

void NcclWatch::add(Watched* group) {
  const std::lock_guard life(life_);
  const std::lock_guard lock(mutex_);
  groups_.push_back(group);
  if (!thread_.joinable()) {
    thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }
}

// `mutex_` is held during a whole look, so a group that is being aborted is not removed meanwhile.
// `life_` is separate, because the thread that is joined here needs `mutex_`.
void NcclWatch::remove(Watched* group) {
  const std::lock_guard life(life_);
  bool last = false;
  {
    const std::lock_guard lock(mutex_);
    std::erase(groups_, group);
    last = groups_.empty();
  }
  if (last) {
    thread_ = std::jthread();
  }
}

void NcclWatch::run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    look();
    changed_.wait_for(lock, stop, kInterval, [] { return false; });
  }
}

void NcclWatch::look() {
  std::optional<std::string> reason;
  for (Watched* group : groups_) {
    reason = group->trouble();
    if (reason) {
      break;
    }
  }
  if (!reason) {
    return;
  }
  // A rank that aborts one group and leaves has only left the others. The group of all ranks is
  // made first and knows the reason, even if it has no collective that waits.
  for (const Watched* group : groups_) {
    if (auto known = group->failure()) {
      reason = std::move(known);
      break;
    }
  }
  // Aborts all groups at the same time, each on its own thread: an abort frees GPU memory, which
  // waits until the kernels of all other groups have ended.
  std::vector<std::jthread> ends;
  for (Watched* group : groups_) {
    if (!group->ended()) {
      ends.emplace_back([group, &reason] { group->end(*reason); });
    }
  }
}

}  // namespace acc::cuda
