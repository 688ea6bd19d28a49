// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/kernels.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <vector>

namespace acc::kernels {

/// Calls task(0), …, task(parts - 1), each once, possibly on several threads.
using RunParts =
    std::function<void(std::size_t parts, const std::function<void(std::size_t)>& task)>;

/// Multiplies on several threads, each with a part of the columns and scratch memory of its own.
class Multiplier {
 public:
  Multiplier(int threads, const RunParts& run)
      : threads_(static_cast<std::size_t>(threads)), run_(run), scratch_(threads_) {}

  void operator()(const Product& product) {
    constexpr std::size_t kBlock = Product::kBlockColumns;
    const std::size_t blocks = (product.columns + kBlock - 1) / kBlock;
    const std::size_t size = (blocks + threads_ - 1) / threads_ * kBlock;
    run_((product.columns + size - 1) / size, [&](std::size_t part) {
      Product own = product;
      std::vector<float>& scratch = scratch_[part];
      scratch.resize(std::max(scratch.size(), Product::scratch_numel(own.rows, own.inner)));
      own.scratch = scratch.data();
      kernels().multiply(own, part * size, std::min(size, own.columns - part * size));
    });
  }

 private:
  std::size_t threads_;
  const RunParts& run_;
  std::vector<std::vector<float>> scratch_;
};

}  // namespace acc::kernels
