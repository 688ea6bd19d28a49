// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/error.hpp"
#include "acc/collectives/process_group.hpp"

#include <functional>
#include <utility>
#include <vector>

namespace acc::collectives {

/// Work that is already complete.
class NoWork final : public Work {
 public:
  void wait() override {}
  void wait_released() override {}
};

/// A collective that consists of several steps. Only the first step is issued at once; each later
/// step is issued inside `wait`, when the step before it is complete. The steps may belong to
/// different groups: a failure of any step aborts `owner` and with it all of them, so that every
/// rank reports the same first cause.
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
  /// Peers read this rank's input in the first step. In all_reduce they also read its reduced
  /// slice, in the last step.
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
  std::vector<Step> rest_;  ///< captures own intermediate buffers, so these outlive the steps' work
  WorkPtr first_;
  WorkPtr current_;
  std::size_t next_ = 0;  ///< index in `rest_` of the next step to issue
};

}  // namespace acc::collectives
