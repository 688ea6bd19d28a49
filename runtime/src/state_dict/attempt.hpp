// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/groups.hpp"

#include <exception>
#include <functional>
#include <string>

namespace acc::state_dict {

/// A sequence of steps that a rank tries without communicating, until all ranks meet in `settle`. A
/// failed rank still calls `settle`, so that no rank waits for it in vain.
class Attempt {
 public:
  /// Runs `step`, unless an earlier step failed.
  template <typename Step>
  void operator()(const Step& step) noexcept {
    if (failure_) {
      return;
    }
    try {
      step();
    } catch (...) {
      failure_ = std::current_exception();
    }
  }

  /// Runs `look` if a step has failed. What it throws is a better explanation and replaces the
  /// failure.
  template <typename Look>
  void explain(const Look& look) noexcept {
    if (failure_) {
      try {
        look();
      } catch (...) {
        failure_ = std::current_exception();
      }
    }
  }

  [[nodiscard]] bool failed() const noexcept { return failure_ != nullptr; }
  /// Text of the failure.
  [[nodiscard]] std::string reason() const;

  /// Collective. Tells every rank whether all ranks succeeded: one all_reduce, and after a failure
  /// the reason too. Throws this rank's own failure, or Error(config) with the number and the
  /// reason of a rank that failed. `what` names the attempt for the other ranks' messages. `undo`
  /// runs on every rank if any has failed: after all have stopped, and before any rank throws and
  /// may end the job.
  void settle(const sharding::Groups& groups, const std::string& what,
              const std::function<void()>& undo = {}) const;

 private:
  [[noreturn]] void rethrow() const;

  std::exception_ptr failure_;
};

}  // namespace acc::state_dict
