#include "collectives/gloo/stall_watch.hpp"

#include "acc/base/error.hpp"
#include "acc/rendezvous/store.hpp"

#include <fmt/format.h>

#include <utility>

namespace acc::collectives {
namespace {

using namespace std::chrono_literals;

// Only waits longer than this cost a look into the store, and then one look in this time.
constexpr auto kLongWait = 250ms;
constexpr auto kAbortInterval = 1s;

}  // namespace

StallWatch::StallWatch(const GroupSpec& spec, std::unique_ptr<rendezvous::Store> store)
    : spec_(spec),
      store_(std::move(store)),
      thread_([this](const std::stop_token& stop) { run(stop); }) {}

StallWatch::~StallWatch() {
  thread_.request_stop();
  changed_.notify_all();
}

std::string StallWatch::call_key(int rank) const {
  return fmt::format("{}/call/{}", spec_.name, rank);
}

void StallWatch::begin(std::uint32_t sequence, std::string call, std::function<void()> cancel) {
  const std::lock_guard lock(mutex_);
  wait_ = Wait{sequence, std::move(call), std::move(cancel)};
  ++generation_;
  changed_.notify_all();
}

std::optional<std::string> StallWatch::end() {
  const std::lock_guard lock(mutex_);
  wait_.reset();
  ++generation_;
  changed_.notify_all();
  return std::exchange(verdict_, std::nullopt);
}

void StallWatch::await_wait(std::unique_lock<std::mutex>& lock, const std::stop_token& stop) {
  const auto waiting = [this] { return wait_.has_value(); };
  while (!stop.stop_requested() && !wait_.has_value()) {
    changed_.wait(lock, stop, [&] { return waiting() || asked_; });
    if (!changed_.wait_for(lock, stop, kAbortInterval, waiting) && !stop.stop_requested()) {
      lock.unlock();
      abort_reason();
      lock.lock();
    }
  }
}

void StallWatch::run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    await_wait(lock, stop);
    const std::uint64_t generation = generation_;
    const auto moved = [&] { return generation_ != generation; };
    while (!stop.stop_requested() && !changed_.wait_for(lock, stop, kLongWait, moved) &&
           wait_.has_value()) {
      const Wait wait = *wait_;
      lock.unlock();
      auto verdict = compare(wait);
      lock.lock();
      if (verdict && !moved()) {
        verdict_ = std::move(verdict);
        wait.cancel();
        break;
      }
    }
    if (!stop.stop_requested()) {
      changed_.wait(lock, stop, moved);
    }
  }
}

std::optional<std::string> StallWatch::compare(const Wait& wait) {
  const std::lock_guard lock(store_mutex_);
  try {
    const std::string mine = fmt::format("{} {}", wait.sequence, wait.call);
    store_->set(call_key(spec_.rank), mine);
    const std::string abort_key = spec_.name + "/abort";
    if (store_->check(std::span(&abort_key, 1))) {
      known_.set(store_->get(abort_key, 5s));
      return known_.get();
    }
    for (int r = 0; r < static_cast<int>(spec_.ranks.size()); ++r) {
      const std::string key = call_key(r);
      if (r == spec_.rank || !store_->check(std::span(&key, 1))) {
        continue;
      }
      const std::string theirs = store_->get(key, 5s);
      if (theirs.substr(0, theirs.find(' ')) == std::to_string(wait.sequence) && theirs != mine) {
        return fmt::format("collective number {} differs: rank {} calls {}, rank {} calls {}",
                           wait.sequence, spec_.ranks[static_cast<std::size_t>(spec_.rank)],
                           wait.call, spec_.ranks[static_cast<std::size_t>(r)],
                           theirs.substr(theirs.find(' ') + 1));
      }
    }
    return std::nullopt;
  } catch (const Error&) {
    return std::nullopt;  // the store may be away for a while; dead peers show by their connections
  }
}

std::optional<std::string> StallWatch::failure() noexcept {
  const std::lock_guard lock(mutex_);
  if (!std::exchange(asked_, true)) {
    changed_.notify_all();
  }
  return known_.get();
}

void StallWatch::publish_abort(const std::string& reason) noexcept {
  known_.set(reason);
  const std::lock_guard lock(store_mutex_);
  try {
    store_->compare_set(spec_.name + "/abort", "", reason);
  } catch (const Error&) {  // without a store the peers see the closed connections
  }
}

std::optional<std::string> StallWatch::abort_reason() noexcept {
  const std::lock_guard lock(store_mutex_);
  try {
    const std::string key = spec_.name + "/abort";
    if (store_->check(std::span(&key, 1))) {
      known_.set(store_->get(key, 5s));
    }
  } catch (const Error&) {
  }
  return known_.get();
}

}  // namespace acc::collectives
