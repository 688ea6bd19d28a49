// SPDX-License-Identifier: Apache-2.0
// The variants "c++" of torch_bridge.py: the module of examples/train_torch, as a library that the
// Python processes load.
#include "gpt.hpp"

#include <memory>

namespace {

struct Trained {
  Trained(int64_t vocab, int64_t positions, int64_t dim, int64_t layers, int64_t heads)
      : net(vocab, positions, dim, layers, heads),
        sharded(acc::torch::fully_shard(net, acc::Runtime::from_environment())),
        optimizer(sharded.model().optimizer(acc::AdamW{.lr = 1e-4})) {}
  Gpt net;
  acc::torch::Sharded sharded;
  acc::Optimizer optimizer;
};

}  // namespace

extern "C" {

/// Makes a module with the strategy of the environment; it lives until the process ends.
__attribute__((visibility("default"))) void* bench_make(int64_t vocab, int64_t positions,
                                                        int64_t dim, int64_t layers,
                                                        int64_t heads) {
  torch::manual_seed(0);
  return std::make_unique<Trained>(vocab, positions, dim, layers, heads).release();
}

/// Makes a step and returns its loss. tokens: [rows, width].
__attribute__((visibility("default"))) double bench_step(void* made, int64_t* tokens, int64_t rows,
                                                         int64_t width) {
  auto& trained = *static_cast<Trained*>(made);
  const Tensor loss =
      acc::torch::call(trained.net, torch::from_blob(tokens, {rows, width}, torch::kLong));
  loss.backward();
  trained.optimizer.step();
  return loss.item<double>();
}
}
