// SPDX-License-Identifier: Apache-2.0
// The smallest program with acc::torch: learns y = sum(x) with two units.
#include <acc/torch.hpp>
#include <torch/nn/modules/linear.h>

#include <iostream>

int main() {
  acc::Runtime runtime = acc::Runtime::from_environment();
  torch::nn::Sequential net(torch::nn::Linear(4, 8), torch::nn::Linear(8, 1));
  const auto sharded = acc::torch::fully_shard(net, runtime, {.units = {{"Linear"}}});
  acc::Optimizer optimizer = sharded.model().optimizer(acc::Sgd{.lr = 0.05});
  double first = 0.0;
  double last = 0.0;
  for (int step = 0; step < 50; ++step) {
    const at::Tensor x = at::randn({16, 4});
    const at::Tensor loss = (acc::torch::call(net, x) - x.sum(1, true)).square().mean();
    loss.backward();
    optimizer.step();
    last = runtime.mean(loss.item<double>());
    first = step == 0 ? last : first;
  }
  std::cout << runtime.describe() << ": loss " << first << " -> " << last << std::endl;
  return last < first / 2 ? 0 : 1;
}
