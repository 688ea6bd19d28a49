// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

namespace acc::sharding {

/// Counts the forwards, backwards and micro-steps of a unit since the last step; nothing else
/// counts them. A unit that the program declared has one for the checks of a step, a sharded unit
/// one for its gathers and reductions (Schedule), and the model one for the mean over micro-steps.
///
/// Forwards under no_grad and recomputations are not reported, except a recomputation whose forward
/// ran under no_grad. A micro-step begins with the first backward after a forward. A forward awaits
/// its backward until one has ended; further backwards (a graph that is retained) change nothing.
class UnitUses {
 public:
  void begin_forward() noexcept {
    used_ = true;
    begins_ = true;
    ++forwards_;
    ++awaiting_;
  }
  void begin_recompute() noexcept {
    if (awaiting_ == 0) {
      used_ = true;
      ++awaiting_;
    }
  }
  void begin_backward() noexcept {
    ++backwards_;
    micro_steps_ += std::exchange(begins_, false) ? 1 : 0;
  }
  /// wrote: the program asked for the gradient of a trained parameter. Returns true if a forward
  /// awaited this backward.
  bool end_backward(bool wrote = true) noexcept {
    wrote_ = wrote_ || wrote;
    wrote_now_ = wrote_now_ || wrote;
    if (awaiting_ == 0) {
      return false;
    }
    if (--awaiting_ == 0 && !std::exchange(wrote_now_, false)) {
      ++without_gradient_;
    }
    return true;
  }
  /// Forgets the gradients since the last step. Forwards still await their backwards.
  void drop() noexcept {
    const UnitUses before = *this;
    *this = {};
    used_ = before.used_;
    begins_ = before.awaiting_ > 0;
    forwards_ = awaiting_ = before.awaiting_;
  }

  /// True after a forward, also of dropped gradients.
  [[nodiscard]] bool used() const noexcept { return used_; }
  /// True after a forward and before the next backward, which begins a micro-step.
  [[nodiscard]] bool begins_micro_step() const noexcept { return begins_; }
  [[nodiscard]] int forwards() const noexcept { return forwards_; }
  [[nodiscard]] int backwards() const noexcept { return backwards_; }
  /// Forwards whose backward has not ended.
  [[nodiscard]] int awaiting() const noexcept { return awaiting_; }
  [[nodiscard]] int micro_steps() const noexcept { return micro_steps_; }
  /// True if a backward wrote a gradient.
  [[nodiscard]] bool wrote() const noexcept { return wrote_; }
  /// Micro-steps that have ended and wrote no gradient.
  [[nodiscard]] int without_gradient() const noexcept { return without_gradient_; }

 private:
  bool used_ = false;
  bool begins_ = false;
  bool wrote_ = false;
  bool wrote_now_ = false;  ///< in the running micro-step
  int forwards_ = 0;
  int backwards_ = 0;
  int awaiting_ = 0;
  int micro_steps_ = 0;
  int without_gradient_ = 0;
};

}  // namespace acc::sharding
