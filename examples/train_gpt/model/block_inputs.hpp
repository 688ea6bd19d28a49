// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "data/batch.hpp"

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

/// Runs the forward of all blocks, on the CPU or on a GPU. work: memory that the blocks share.
/// inputs: keeps the input of each block, of `nbytes`; null: none.
template <class Block, class T, class Work>
const T* forward_blocks(std::vector<Block>& blocks, const T* x, BatchShape shape, Work& work,
                        BlockInputs* inputs, std::int64_t nbytes) {
  for (Block& block : blocks) {
    if (inputs != nullptr) {
      inputs->keep(x, nbytes);
    }
    auto use = block.unit().forward();
    x = block.forward(use, x, shape, work);
    use.end();
  }
  return x;
}

/// Runs the backward of all blocks. dx: the gradient of the last one's output, then of the first
/// one's input. With `inputs` each block's activations are recomputed: `recompute` is a forward
/// scope inside the backward scope, so the weights are not gathered again.
template <class Block, class T, class Work>
void backward_blocks(std::vector<Block>& blocks, T* dx, BatchShape shape, Work& work,
                     BlockInputs* inputs) {
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
    auto use = block->unit().backward();
    if (inputs != nullptr) {
      const auto* x = static_cast<const T*>(inputs->take());
      auto again = block->unit().recompute();
      block->forward(again, x, shape, work);
      again.end();
    }
    block->backward(use, dx, shape, work);
    use.end();
  }
}

}  // namespace train_gpt
