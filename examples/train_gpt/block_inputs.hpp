#pragma once

#include <acc/runtime.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace train_gpt {

/// With activation checkpointing, the inputs of the blocks of a micro-step: all that is kept of its
/// forward. The runtime holds them, in host memory where it was asked to.
class BlockInputs {
 public:
  explicit BlockInputs(acc::Runtime& runtime) : runtime_(&runtime) {}

  void keep(const void* x, std::int64_t nbytes) {
    kept_.push_back(runtime_->keep(x, static_cast<std::size_t>(nbytes)));
    nbytes_ += nbytes;
    most_nbytes_ = std::max(most_nbytes_, nbytes_);
    each_ = nbytes;
  }

  /// The last one that was not taken, valid until the next call; the one before it sets out.
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

  [[nodiscard]] std::int64_t most_nbytes() const { return most_nbytes_; }

 private:
  acc::Runtime* runtime_;
  std::vector<acc::SavedActivation> kept_;
  acc::SavedActivation current_;
  std::int64_t nbytes_ = 0;
  std::int64_t each_ = 0;  ///< bytes of one: all of a micro-step are alike
  std::int64_t most_nbytes_ = 0;
};

}  // namespace train_gpt
