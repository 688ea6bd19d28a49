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

// Only waits longer than this cost a look into the store, and then one look in this time.
constexpr auto kLongWait = 250ms;
constexpr auto kAbortInterval = 1s;
// How often a rank that found a difference looks again for what the others call.
constexpr int kMostLooks = 20;
// Ranks may differ in one that none of them waits in yet.
constexpr std::size_t kComparedCalls = 16;

using Calls = std::map<std::uint32_t, std::string>;

/// A line each: "41 reduce_scatter of …".
std::string encode(const Calls& calls) {
  std::string text;
  for (const auto& [sequence, call] : calls) {
    text += fmt::format("{} {}\n", sequence, call);
  }
  return text;
}

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
    if (!stop.stop_requested()) {
      changed_.wait(lock, stop, moved);
    }
  }
}

std::optional<StallWatch::Verdict> StallWatch::compare(const Calls& mine) {
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
    return std::nullopt;  // the store may be away for a while; dead peers show by their connections
  }
}

/// The first collective of this rank that others called differently, when all have said what they
/// call there, or enough looks have been taken.
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
  return known_.get();
}

/// In the store: the rank that is the cause, or -1, and the reason.
void StallWatch::publish_abort(const std::string& reason, std::optional<int> at_fault) noexcept {
  known_.set(reason, at_fault);
  const std::lock_guard lock(store_mutex_);
  try {
    store_->compare_set(spec_.name + "/abort", "",
                        std::to_string(at_fault.value_or(-1)) + " " + reason);
  } catch (const Error&) {  // without a store the peers see the closed connections
  }
}

std::optional<StallWatch::Verdict> StallWatch::abort_reason() noexcept {
  const std::lock_guard lock(store_mutex_);
  try {
    if (auto abort = read_abort()) {
      return abort;
    }
  } catch (const Error&) {
  }
  const auto reason = known_.get();
  return reason ? std::optional(Verdict{*reason, known_.at_fault()}) : std::nullopt;
}

/// Of the store; known from then on.
std::optional<StallWatch::Verdict> StallWatch::read_abort() {
  const std::string key = spec_.name + "/abort";
  if (!store_->check(std::span(&key, 1))) {
    return std::nullopt;
  }
  const std::string text = store_->get(key, 5s);
  const std::size_t space = text.find(' ');
  int rank = -1;
  std::from_chars(text.data(), text.data() + std::min(space, text.size()), rank);
  const bool is_member = std::ranges::count(spec_.ranks, rank) > 0;
  known_.set(printable(space == std::string::npos ? text : text.substr(space + 1)),
             is_member ? std::optional(rank) : std::nullopt);
  return Verdict{known_.get().value_or(""), known_.at_fault()};
}

}  // namespace acc::collectives
