// SPDX-License-Identifier: Apache-2.0
#include "collectives/gloo/stall_watch.hpp"

#include "acc/base/error.hpp"
#include "acc/base/text.hpp"
#include "acc/rendezvous/store.hpp"
#include "collectives/call_difference.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

namespace acc::collectives {
namespace {

using namespace std::chrono_literals;

// Waits shorter than this do not use the store; longer ones use it once per this interval.
constexpr auto kLongWait = 250ms;
// Interval at which the store is read for aborts between waits, once `failure` has been called:
// doubled from the first to the longest one, so that most aborts are seen early and few reads are
// made in a long job.
constexpr std::chrono::milliseconds kFirstAbortInterval = 15ms;
constexpr std::chrono::milliseconds kLongestAbortInterval = 1s;
// Number of times that a rank which found a difference looks again while some ranks have not
// published their call yet; about 5 s.
constexpr int kMostLooks = 20;
// Number of calls that a rank publishes. More than one, because ranks issue ahead: they may differ
// in a collective that none of them waits in yet.
constexpr std::size_t kComparedCalls = 16;
// Longest accepted abort reason in bytes. Any process that reaches the store may have written it.
constexpr std::size_t kMaxReason = 4096;
// Kinds of an abort in the store.
constexpr std::string_view kLost = "lost";
constexpr std::string_view kFailed = "failed";

using Calls = std::map<std::uint32_t, std::string>;

/// Text of the store value: one line per call, such as "41 reduce_scatter of 8 x float32".
std::string encode(const Calls& calls) {
  std::string text;
  for (const auto& [sequence, call] : calls) {
    text += fmt::format("{} {}\n", sequence, call);
  }
  return text;
}

/// Parses such text and ignores malformed lines, because any process may have written it.
Calls decode(std::string_view text) {
  Calls calls;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    std::uint32_t sequence = 0;
    const auto parsed = std::from_chars(line.data(), line.data() + line.size(), sequence);
    if (parsed.ec == std::errc() && parsed.ptr != line.data() + line.size()) {
      calls.emplace(sequence, std::string(parsed.ptr + 1, line.data() + line.size()));
    }
  }
  return calls;
}

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

void StallWatch::called(std::uint32_t sequence, std::string call) {
  const std::lock_guard lock(mutex_);
  calls_.insert_or_assign(sequence, std::move(call));
  if (calls_.size() > kComparedCalls) {
    calls_.erase(calls_.begin());
  }
}

void StallWatch::begin(std::function<void()> cancel) {
  const std::lock_guard lock(mutex_);
  wait_ = Wait{std::move(cancel)};
  ++generation_;
  changed_.notify_all();
}

void StallWatch::end() {
  const std::lock_guard lock(mutex_);
  wait_.reset();
  ++generation_;
  if (std::exchange(told_, false)) {
    spec_.board->waits_for(WaitBoard::kNobody);
  }
  changed_.notify_all();
}

std::optional<StallWatch::Verdict> StallWatch::give_up() {
  const std::lock_guard lock(mutex_);
  wait_.reset();
  ++generation_;
  changed_.notify_all();
  return std::exchange(verdict_, std::nullopt);
}

/// Returns when a wait has begun. Meanwhile, once `failure` has been called, reads aborts from the
/// store at this interval, which grows with each read.
void StallWatch::await_wait(std::unique_lock<std::mutex>& lock, const std::stop_token& stop,
                            std::chrono::milliseconds& interval) {
  const auto waiting = [this] { return wait_.has_value(); };
  while (!stop.stop_requested() && !wait_.has_value()) {
    changed_.wait(lock, stop, [&] { return waiting() || asked_; });
    if (!changed_.wait_for(lock, stop, interval, waiting) && !stop.stop_requested()) {
      interval = std::min(2 * interval, kLongestAbortInterval);
      lock.unlock();
      abort_reason();
      lock.lock();
    }
  }
}

// The watch's thread. For each wait that lasts longer than kLongWait it publishes this rank's calls
// and compares them with the others', until the wait ends or there is a verdict. The store is never
// used with mutex_ held, because `begin` and `end` run on the path of every collective.
void StallWatch::run(const std::stop_token& stop) {
  auto abort_interval = kFirstAbortInterval;
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    await_wait(lock, stop, abort_interval);
    // The store is read without the lock, so the wait may end meanwhile. The generation tells
    // whether the verdict is still about the current wait.
    const std::uint64_t generation = generation_;
    const auto moved = [&] { return generation_ != generation; };
    while (!stop.stop_requested() && !changed_.wait_for(lock, stop, kLongWait, moved) &&
           wait_.has_value()) {
      const Wait wait = *wait_;
      const Calls mine = calls_;
      if (const int peer = peer_; spec_.board && peer >= 0) {
        told_ = true;
        spec_.board->waits_for(spec_.ranks[static_cast<std::size_t>(peer)]);
      }
      lock.unlock();
      auto verdict = compare(mine);
      lock.lock();
      if (verdict && !moved()) {
        verdict_ = std::move(verdict);
        wait.cancel();
        break;
      }
    }
    // After a verdict: the waiting thread has yet to take it in `give_up`.
    if (!stop.stop_requested()) {
      changed_.wait(lock, stop, moved);
    }
  }
}

std::optional<StallWatch::Verdict> StallWatch::compare(const Calls& mine) {
  if (spec_.check) {
    try {
      spec_.check();
    } catch (const Error& error) {
      return Verdict{error.what(), error.rank(), error.code()};
    }
  }
  const std::lock_guard lock(store_mutex_);
  try {
    store_->set(call_key(spec_.rank), encode(mine));
    if (auto abort = read_abort()) {
      return abort;
    }
    std::map<int, Calls> calls = {{spec_.ranks[static_cast<std::size_t>(spec_.rank)], mine}};
    for (int r = 0; r < static_cast<int>(spec_.ranks.size()); ++r) {
      const std::string key = call_key(r);
      if (r != spec_.rank && store_->check(std::span(&key, 1))) {
        calls[spec_.ranks[static_cast<std::size_t>(r)]] = decode(store_->get(key, 5s));
      }
    }
    return difference(calls, mine);
  } catch (const std::exception&) {
    return std::nullopt;  // the store may be unreachable; dead peers are found by their connections
  }
}

/// Finds the first collective of this rank that other ranks called differently. Reports it when all
/// ranks have published their call under that number, or after kMostLooks attempts: only with all
/// calls is it known which ones are in the minority.
std::optional<StallWatch::Verdict> StallWatch::difference(const std::map<int, Calls>& calls,
                                                          const Calls& mine) {
  for (const auto& [sequence, _] : mine) {
    std::map<std::string, std::vector<int>> ranks_by_call;
    std::size_t known = 0;
    for (const auto& [rank, theirs] : calls) {
      if (const auto call = theirs.find(sequence); call != theirs.end()) {
        ranks_by_call[call->second].push_back(rank);
        ++known;
      }
    }
    if (ranks_by_call.size() < 2) {
      continue;
    }
    if (known < spec_.ranks.size() && ++incomplete_looks_ < kMostLooks) {
      return std::nullopt;
    }
    auto [reason, at_fault] = call_difference(
        sequence, fmt::format("gloo[{}]", fmt::join(spec_.ranks, ",")), ranks_by_call);
    return Verdict{std::move(reason), at_fault};
  }
  return std::nullopt;
}

std::optional<std::string> StallWatch::failure() noexcept {
  const std::lock_guard lock(mutex_);
  if (!std::exchange(asked_, true)) {
    changed_.notify_all();
  }
  auto known = known_.get();
  return known ? known : spec_.members_changed();
}

/// The store value is "<rank at fault or -1> <kLost or kFailed> <reason>". compare_set with an
/// empty old value lets only the first rank write it.
void StallWatch::publish_abort(const Verdict& why) noexcept {
  known_.set(why.reason, why.at_fault, why.code);
  const std::lock_guard lock(store_mutex_);
  try {
    store_->compare_set(spec_.name + "/abort", "",
                        fmt::format("{} {} {}", why.at_fault.value_or(-1),
                                    why.code == Errc::peer_lost ? kLost : kFailed, why.reason));
  } catch (const Error&) {  // without a store, peers only see closed connections
  }
}

std::optional<StallWatch::Verdict> StallWatch::abort_reason() noexcept {
  const std::lock_guard lock(store_mutex_);
  try {
    if (auto abort = read_abort()) {
      return abort;
    }
  } catch (const Error&) {  // without the store, this rank's own reason is all that is known
  }
  const auto reason = known_.get();
  return reason ? std::optional(Verdict{*reason, known_.at_fault(), known_.code()}) : std::nullopt;
}

/// Reads the abort of any rank from the store, and keeps it as this group's failure.
std::optional<StallWatch::Verdict> StallWatch::read_abort() {
  const std::string key = spec_.name + "/abort";
  if (!store_->check(std::span(&key, 1))) {
    return std::nullopt;
  }
  std::string text = store_->get(key, 5s).substr(0, kMaxReason);
  const auto take = [&text] {
    const std::string word = text.substr(0, text.find(' '));
    text.erase(0, std::min(word.size() + 1, text.size()));
    return word;
  };
  const std::string at_fault = take();
  const std::string kind = take();
  int rank = -1;
  std::from_chars(at_fault.data(), at_fault.data() + at_fault.size(), rank);
  const bool is_member = std::ranges::count(spec_.ranks, rank) > 0;
  known_.set(printable(text), is_member ? std::optional(rank) : std::nullopt,
             kind == kLost ? Errc::peer_lost : Errc::collective);
  return Verdict{known_.get().value_or(""), known_.at_fault(), known_.code()};
}

}  // namespace acc::collectives
