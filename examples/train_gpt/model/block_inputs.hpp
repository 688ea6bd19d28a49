// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <acc/runtime.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace train_gpt {

/// The inputs of the blocks of a micro-step: with activation checkpointing, the only activations
/// that are saved. The runtime stores them, in host memory if activation offload is on. A stack:
/// the forward pushes (`keep`), the backward pops (`take`).
class BlockInputs {
 public:
  explicit BlockInputs(acc::Runtime& runtime) : runtime_(&runtime) {}

  /// Saves a copy of a block's input.
  void keep(const void* x, std::int64_t nbytes) {
    kept_.push_back(runtime_->keep(x, static_cast<std::size_t>(nbytes)));
    nbytes_ += nbytes;
    most_nbytes_ = std::max(most_nbytes_, nbytes_);
    each_ = nbytes;
  }

  /// Returns the input that was saved last and removes it; valid until the next call. Starts the
  /// transfer of the one before it, which the next call will return.
  const void* take() {
    current_ = std::move(kept_.back());
    kept_.pop_back();
    nbytes_ -= each_;
    const void* x = current_.restore();
    if (!kept_.empty()) {
      kept_.back().prefetch();
    }
    return x;
  }

  /// Largest number of bytes that were saved at the same time.
  [[nodiscard]] std::int64_t most_nbytes() const { return most_nbytes_; }

 private:
  acc::Runtime* runtime_;
  std::vector<acc::SavedActivation> kept_;
  acc::SavedActivation current_;
  std::int64_t nbytes_ = 0;
  std::int64_t each_ = 0;  ///< bytes of one input; the same for all inputs of a micro-step
  std::int64_t most_nbytes_ = 0;
};

}  // namespace train_gpt
