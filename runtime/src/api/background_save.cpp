// SPDX-License-Identifier: Apache-2.0
#include "api/background_save.hpp"

#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "state_dict/background_thread.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

namespace acc::detail {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// Time after which a wait for other ranks looks whether the job has failed.
constexpr milliseconds kSlice{500};
/// Time for which a rank waits for the others after the job has failed. Those that live need it to
/// end their files; the launcher ends the others soon.
constexpr milliseconds kAfterFailure{5000};
/// Interval in which `wait` looks at the progress.
constexpr milliseconds kGlance{200};

/// Published as the end of a save that is complete. A reason follows in its place if it is not.
constexpr const char* kComplete = "complete";

}  // namespace

BackgroundSave::BackgroundSave(Plan plan)
    : plan_(std::move(plan)),
      meter_(ShowProgress::no, Component::runtime, "saving " + plan_.directory,
             plan_.snapshot.nbytes) {
  thread_ = state_dict::background_thread("acc-save", [this] { run(); });
}

BackgroundSave::~BackgroundSave() {
  thread_.join();
}

bool BackgroundSave::has_ended() const {
  const std::lock_guard lock(mutex_);
  return ended_;
}

std::optional<std::string> BackgroundSave::wait() {
  const bool shows = plan_.snapshot.rank == 0;
  ProgressMeter shown(shows ? ShowProgress::yes : ShowProgress::no, Component::runtime,
                      "completing the save of " + plan_.directory, plan_.snapshot.nbytes);
  std::uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kGlance, [this] { return ended_; })) {
    const std::uint64_t done = meter_.done();
    shown.add(done - seen);
    seen = done;
  }
  return failure_;
}

void BackgroundSave::run() noexcept {
  // Before it steps back: the training may wait for a piece that this thread copies.
  for (const auto& copy : plan_.snapshot.copies) {
    plan_.attempt([&copy = *copy] { copy.finish(); });
    copy->end();
  }
  state_dict::step_back();
  std::optional<std::string> failure;
  try {
    failure = write();
  } catch (const std::exception& error) {  // of the store: this rank does not learn the end
    failure = fmt::format("saving {}: {}", plan_.directory, error.what());
  }
  if (failure && plan_.snapshot.rank == 0) {
    logger(Component::runtime)
        .warn("{}; older checkpoints stay as they are, and the training continues", *failure);
  }
  const std::lock_guard lock(mutex_);
  failure_ = std::move(failure);
  ended_ = true;
  changed_.notify_all();
}

std::optional<std::string> BackgroundSave::write() {
  state_dict::SnapshotWriter writer(plan_.snapshot, plan_.directory, plan_.id, plan_.existing,
                                    meter_);
  writer.begin(plan_.attempt);
  if (meet_at_begin()) {
    writer.write(plan_.attempt, &abandoned_);
  }
  if (plan_.snapshot.rank == 0) {
    try {
      return end_by_rank_zero(writer);
    } catch (...) {
      writer.abandon();
      throw;
    }
  }
  meet();
  if (!await(key("end"), milliseconds::max())) {
    return fmt::format("saving {}: rank 0 has not completed it before the job failed",
                       plan_.directory);
  }
  std::string end = plan_.store->get(key("end"), kSlice);
  return end == kComplete ? std::nullopt : std::optional(std::move(end));
}

/// Waits until rank 0 has begun. Returns false if it could not: no rank writes then.
bool BackgroundSave::meet_at_begin() {
  if (plan_.store == nullptr) {
    return true;
  }
  constexpr const char* kCannot = "cannot";
  if (plan_.snapshot.rank == 0) {
    plan_.store->set(key("begun"), plan_.attempt.failed() ? kCannot : "");
    return true;
  }
  if (await(key("begun"), milliseconds::max())) {
    return plan_.store->get(key("begun"), kSlice) != kCannot;
  }
  plan_.attempt([] { throw Error(Errc::config, "rank 0 has not begun before the job failed"); });
  return true;
}

/// Publishes what has become of this rank's files. The first failure of any rank is kept. The last
/// rank tells rank 0, which so waits for one key, whatever the number of ranks.
void BackgroundSave::meet() {
  rendezvous::Store& store = *plan_.store;
  if (plan_.attempt.failed()) {
    store.compare_set(key("failure"), "",
                      fmt::format("rank {} failed in saving {}: {}", plan_.snapshot.rank,
                                  plan_.directory, plan_.attempt.reason()));
  }
  if (store.add(key("written"), 1) == plan_.snapshot.ranks) {
    store.set(key("met"), "");
  }
}

std::optional<std::string> BackgroundSave::end_by_rank_zero(state_dict::SnapshotWriter& writer) {
  rendezvous::Store* const store = plan_.store.get();
  std::optional<std::string> failure;
  if (store == nullptr) {
    if (plan_.attempt.failed()) {
      failure =
          fmt::format("rank 0 failed in saving {}: {}", plan_.directory, plan_.attempt.reason());
    }
  } else {
    meet();
    if (!await(key("met"), plan_.timeout)) {
      failure = fmt::format(
          "saving {}: only {} of {} ranks have written their files ({})", plan_.directory,
          store->add(key("written"), 0), plan_.snapshot.ranks,
          plan_.failure().value_or(fmt::format("waited for {} s", plan_.timeout.count() / 1000)));
    } else if (const std::string failed = key("failure"); store->check(std::span(&failed, 1))) {
      failure = store->get(failed, kSlice);
    }
  }
  if (!failure) {
    try {
      writer.commit();
      if (plan_.committed) {
        plan_.committed();
      }
    } catch (const std::exception& error) {
      failure = fmt::format("rank 0 could not complete {}: {}", plan_.directory, error.what());
    }
  }
  if (failure) {
    writer.abandon();
  }
  if (store != nullptr) {
    store->set(key("end"), failure.value_or(kComplete));
    // All ranks have read the end of the save before this one, since they have begun this one.
    for (const char* const each : {"begun", "written", "failure", "met"}) {
      store->delete_key(key(each));
    }
    if (plan_.previous) {
      store->delete_key(fmt::format("save/{}/end", *plan_.previous));
    }
  }
  return failure;
}

/// Waits for a key. Returns false if it does not appear in `timeout`, or soon after the job has
/// failed.
bool BackgroundSave::await(const std::string& key, milliseconds timeout) {
  std::optional<Clock::time_point> end;
  if (timeout != milliseconds::max()) {
    end = Clock::now() + timeout;
  }
  bool failed = false;
  while (true) {
    try {
      plan_.store->wait(std::span(&key, 1), kSlice);
      return true;
    } catch (const Error& error) {
      if (error.code() != Errc::timeout) {
        throw;
      }
    }
    if (!failed && plan_.failure()) {
      failed = true;
      end = std::min(end.value_or(Clock::time_point::max()), Clock::now() + kAfterFailure);
    }
    if (abandoned_ || (end && Clock::now() >= *end)) {
      return false;
    }
  }
}

std::string BackgroundSave::key(const char* name) const {
  return fmt::format("save/{}/{}", plan_.id, name);
}

}  // namespace acc::detail
