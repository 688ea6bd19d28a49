// SPDX-License-Identifier: Apache-2.0
// A small training in which one rank makes a mistake in the third of six steps:
//   root_cause_probe RANK [skips|returns|leaves|throws|killed|hangs]
// A rank whose collective fails prints the error and exits with 10 + its rank.
#include "acc/runtime.hpp"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace {

constexpr int kDim = 16;

/// One forward and backward pass of two units; the gradient of each weight is its value.
void pass(acc::Unit& unit, acc::Parameter weight) {
  { const auto use = unit.forward(); }
  auto use = unit.backward();
  const float* const values = use[weight];
  float* const gradient = use.grad_to_add(weight);
  for (int i = 0; i < kDim * kDim; ++i) {
    gradient[i] += values[i];
  }
}

int train(int rank_at_fault, const std::string& mistake) {
  auto runtime = acc::Runtime::from_environment();
  auto model = runtime.model(7);
  auto& first = model.unit("net.first", "Layer");
  auto& second = model.unit("net.second", "Layer");
  const auto w1 = first.parameter("weight", {kDim, kDim}, acc::normal(0.5F));
  const auto w2 = second.parameter("weight", {kDim, kDim}, acc::normal(0.5F));
  auto optimizer = model.optimizer(acc::AdamW{.lr = 0.01});
  for (int step = 0; step < 6; ++step) {
    const bool is_now = step == 2 && runtime.rank() == rank_at_fault;
    pass(first, w1);
    if (is_now && mistake == "returns") {
      std::fprintf(stderr, "rank %d gives up\n", runtime.rank());
      return 3;
    }
    if (is_now && mistake == "leaves") {
      return 0;
    }
    if (is_now && mistake == "throws") {
      throw std::runtime_error("no data left");
    }
    if (is_now && mistake == "killed") {
      ::kill(::getpid(), SIGKILL);
    }
    if (is_now && mistake == "hangs") {
      std::fprintf(stderr, "rank %d hangs\n", runtime.rank());
      ::pause();
    }
    pass(second, w2);
    if (!is_now || mistake != "skips") {
      optimizer.step();
    }
    [[maybe_unused]] const double loss = runtime.mean(1.0);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const char* const rank = std::getenv("RANK");
  try {
    return train(std::atoi(argv[1]), argc > 2 ? argv[2] : "");
  } catch (const acc::Error& error) {
    std::fprintf(stderr, "rank %s was told: %s\n", rank, error.what());
    return 10 + std::atoi(rank);
  } catch (const std::runtime_error& error) {
    std::fprintf(stderr, "rank %s failed: %s\n", rank, error.what());
    return 4;
  }
}
