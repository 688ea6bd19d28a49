#pragma once

#include "acc/base/error.hpp"
#include "acc/collectives/process_group.hpp"

#include <functional>
#include <utility>
#include <vector>

namespace acc::collectives {

/// Work that is there already.
class NoWork final : public Work {
 public:
  void wait() override {}
  void wait_released() override {}
};

/// Collectives one after the other: a step starts, in `wait`, when the one before is done. Where
/// the steps belong to several groups, a failure aborts `owner`, so that all ranks name the first
/// cause.
class Steps final : public Work {
 public:
  using Step = std::function<WorkPtr()>;
  Steps(ProcessGroup* owner, WorkPtr first, std::vector<Step> rest)
      : owner_(owner), rest_(std::move(rest)), first_(first), current_(std::move(first)) {}

  void wait() override {
    guarded([this] {
      current_->wait();
      while (next_ < rest_.size()) {
        current_ = rest_[next_++]();
        current_->wait();
      }
    });
  }
  /// Peers read this rank's input in the first step, and in all_reduce its slice in the last.
  void wait_released() override {
    guarded([this] { first_->wait_released(); });
    wait();
    guarded([this] { current_->wait_released(); });
  }

 private:
  template <typename Call>
  void guarded(const Call& call) {
    try {
      call();
    } catch (const Error& error) {
      owner_->abort(error.what());
      throw;
    }
  }

  ProcessGroup* owner_;
  std::vector<Step> rest_;  ///< owns what the steps write to: outlives them
  WorkPtr first_;
  WorkPtr current_;
  std::size_t next_ = 0;
};

}  // namespace acc::collectives
