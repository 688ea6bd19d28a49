#pragma once

#include "sharding/groups.hpp"

#include <exception>
#include <functional>
#include <string>

namespace acc::checkpoint {

/// What a rank tries without a word to the others, step by step, until they meet in `settle`: so
/// that no rank waits for one that has given up.
class Attempt {
 public:
  /// Runs `step`, unless one before it failed.
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

  /// Runs `look` where a step has failed: what it throws is a better reason, and takes its place.
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

  /// Tells every rank whether all went well everywhere: one all_reduce, and where it did not,
  /// the reason too. Throws the own failure, or Error(config) that names a rank that failed
  /// and its reason. `what`: the attempt, in what the others say. `undo` runs on every rank where
  /// one has failed: after all have stopped, and before any hears of it and may end the job.
  void settle(const sharding::Groups& groups, const std::string& what,
              const std::function<void()>& undo = {}) const;

 private:
  [[noreturn]] void rethrow() const;

  std::exception_ptr failure_;
};

}  // namespace acc::checkpoint
