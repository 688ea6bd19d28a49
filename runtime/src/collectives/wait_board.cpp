// SPDX-License-Identifier: Apache-2.0
#include "collectives/wait_board.hpp"

#include "acc/base/error.hpp"
#include "acc/rendezvous/store.hpp"

#include <charconv>
#include <chrono>
#include <exception>
#include <set>
#include <span>
#include <string>

// Each rank writes the store key "waits/<its global rank>": the global rank that it waits for, or
// -1. A missing key means that the rank has never waited long. The thread that waits only sets
// `waits_for_` and wakes the board's thread, which writes the store, because a store call may block
// as long as the wait itself. Neither mutex is held while the other is taken.
namespace acc::collectives {
namespace {

// A wait is published after this many sleeps, that is after about 200 ms.
constexpr int kSleepsOfLongWait = 4;

// Pause after a failed write to the store.
constexpr std::chrono::milliseconds kRetry{250};

std::string key_of(int rank) {
  return "waits/" + std::to_string(rank);
}

}  // namespace

WaitBoard::WaitBoard(int rank, int world_size, rendezvous::Store& store)
    : rank_(rank), world_size_(world_size), origin_(store) {}

WaitBoard::~WaitBoard() {
  thread_.request_stop();
  changed_.notify_all();
}

rendezvous::Store& WaitBoard::store() {
  if (!store_) {
    store_ = origin_.clone();
  }
  return *store_;
}

void WaitBoard::waits_for(int rank) noexcept {
  const std::lock_guard lock(mutex_);
  if (rank == waits_for_) {
    return;
  }
  waits_for_ = rank;
  // noexcept: this runs while a wait is in progress, and a missing thread must not fail the wait.
  try {
    if (!thread_.joinable()) {
      thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
    }
  } catch (const std::exception&) {  // no thread to be had: the wait stays unpublished
  }
  changed_.notify_all();
}

void WaitBoard::run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    changed_.wait(lock, stop, [this] { return said_ != waits_for_; });
    if (stop.stop_requested()) {
      return;
    }
    // Values that change again before they are published are skipped: only the current wait
    // matters.
    const int rank = waits_for_;
    bool is_published = false;
    lock.unlock();
    try {
      const std::lock_guard store_lock(store_mutex_);
      store().set(key_of(rank_), std::to_string(rank));
      is_published = true;
    } catch (const Error&) {  // the store may be unreachable for a while
    }
    lock.lock();
    if (is_published) {
      said_ = rank;
    } else {
      changed_.wait_for(lock, stop, kRetry, [&] { return waits_for_ != rank; });
    }
  }
}

int WaitBoard::late_rank(int rank) noexcept {
  try {
    const std::lock_guard lock(store_mutex_);
    std::set<int> seen = {rank_};  // a cycle ends the search, also one through this rank
    int late = rank;
    while (seen.insert(late).second) {
      const std::string key = key_of(late);
      if (!store().check(std::span(&key, 1))) {
        return late;
      }
      const std::string text = store().get(key, std::chrono::seconds(5));
      int next = kNobody;
      std::from_chars(text.data(), text.data() + text.size(), next);
      if (next < 0 || next >= world_size_) {  // kNobody, or not a rank
        return late;
      }
      late = next;
    }
  } catch (const std::exception&) {  // without the store the chain cannot be followed
  }
  return rank;
}

LongWait::~LongWait() {
  if (told_ && std::uncaught_exceptions() == exceptions_) {
    board_->waits_for(WaitBoard::kNobody);
  }
}

void LongWait::goes_on(int rank) noexcept {
  if (board_ != nullptr && ++sleeps_ >= kSleepsOfLongWait) {
    told_ = true;
    board_->waits_for(rank);
  }
}

}  // namespace acc::collectives
