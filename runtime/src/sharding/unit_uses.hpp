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
struct UnitUses {
  bool used = false;       ///< there was a forward, also if its gradients were dropped
  bool begins = false;     ///< a forward since the last backward: the next begins a micro-step
  bool wrote = false;      ///< a backward wrote a gradient
  bool wrote_now = false;  ///< the same in the running micro-step
  int forwards = 0;        ///< since the last step or drop, as all of these
  int backwards = 0;
  int awaiting = 0;          ///< forwards whose backward has not ended
  int micro_steps = 0;       ///< begun
  int without_gradient = 0;  ///< micro-steps that have ended and wrote no gradient

  void begin_forward() noexcept {
    used = begins = true;
    ++forwards;
    ++awaiting;
  }
  /// Returns true if the recomputation counts as a forward, because its forward did not.
  bool begin_recompute() noexcept {
    if (awaiting > 0) {
      return false;
    }
    used = true;
    ++awaiting;
    return true;
  }
  void begin_backward() noexcept {
    ++backwards;
    micro_steps += std::exchange(begins, false) ? 1 : 0;
  }
  /// writes: the program asked for the gradient of a trained parameter. Returns true if a forward
  /// awaited this backward.
  bool end_backward(bool writes = true) noexcept {
    wrote = wrote || writes;
    wrote_now = wrote_now || writes;
    if (awaiting == 0) {
      return false;
    }
    if (--awaiting == 0 && !std::exchange(wrote_now, false)) {
      ++without_gradient;
    }
    return true;
  }
  /// Forgets the gradients since the last step. Forwards still await their backwards.
  void drop() noexcept {
    *this = {.used = used, .begins = awaiting > 0, .forwards = awaiting, .awaiting = awaiting};
  }
  /// Forgets the forwards that await their backwards: the weights of their backwards are gone.
  void forget_forwards() noexcept {
    used = begins = false;
    forwards -= std::exchange(awaiting, 0);
  }
};

}  // namespace acc::sharding
