// SPDX-License-Identifier: Apache-2.0
// Trains a small network to compute sin(3x), sharded as the configuration file says:
//   acclaunch --config_file configs/fsdp_full_shard.yaml --cpu --num_processes 2 hello_sharding
// The same program runs under every file of configs/, with any number of processes, and alone.
#include <acc/runtime.hpp>

#include <array>
#include <cmath>
#include <cstdio>
#include <random>

constexpr int kHidden = 32;
constexpr int kBatch = 64;  // samples per rank and micro-step

int main() try {
  // Rank, world size and strategy come from the launcher's environment.
  acc::Runtime runtime = acc::Runtime::from_environment();
  acc::Model model = runtime.model(/*seed=*/1);

  // A unit is what is gathered and freed together. Each rank stores its share of every parameter.
  acc::Unit& hidden = model.unit("hidden", "Layer");
  const acc::Parameter w1 = hidden.parameter("weight", {kHidden}, acc::normal(2.0F));
  const acc::Parameter b1 = hidden.parameter("bias", {kHidden}, acc::normal(1.0F));
  acc::Unit& output = model.unit("output", "Layer");
  const acc::Parameter w2 = output.parameter("weight", {kHidden}, acc::normal(0.2F));
  acc::Optimizer optimizer = model.optimizer(acc::AdamW{.lr = 1e-2, .weight_decay = 0.0});

  std::mt19937 random(static_cast<unsigned>(runtime.rank()));  // each rank has its own samples
  std::uniform_real_distribution<float> sample(-1.0F, 1.0F);
  for (int step = 1; step <= 500; ++step) {
    double loss = 0.0;
    for (int micro = 0; micro < runtime.gradient_accumulation_steps(); ++micro) {
      std::array<float, kBatch> x, error;
      std::array<std::array<float, kHidden>, kBatch> h;
      {  // Inside the scope the unit's parameters are whole; after it they may be freed.
        acc::ForwardUse use = hidden.forward();
        for (int n = 0; n < kBatch; ++n) {
          x[n] = sample(random);
          for (int i = 0; i < kHidden; ++i) {
            h[n][i] = std::tanh(use[w1][i] * x[n] + use[b1][i]);
          }
        }
      }
      {
        acc::ForwardUse use = output.forward();
        for (int n = 0; n < kBatch; ++n) {
          float y = 0.0F;
          for (int i = 0; i < kHidden; ++i) {
            y += use[w2][i] * h[n][i];
          }
          error[n] = y - std::sin(3.0F * x[n]);
          loss += 0.5 * error[n] * error[n] / kBatch;
        }
      }
      std::array<float, kHidden> w2_values;
      {  // Backward scopes take the gradients, which are summed over all ranks and sharded.
        acc::BackwardUse use = output.backward();
        float* const gradient = use.grad_to_add(w2);
        for (int i = 0; i < kHidden; ++i) {
          w2_values[i] = use[w2][i];
          for (int n = 0; n < kBatch; ++n) {
            gradient[i] += error[n] * h[n][i] / kBatch;
          }
        }
      }
      acc::BackwardUse use = hidden.backward();
      for (int i = 0; i < kHidden; ++i) {
        for (int n = 0; n < kBatch; ++n) {
          const float slope = error[n] * w2_values[i] * (1.0F - h[n][i] * h[n][i]) / kBatch;
          use.grad_to_add(w1)[i] += slope * x[n];
          use.grad_to_add(b1)[i] += slope;
        }
      }
    }
    optimizer.step();  // each rank updates its own share
    const double mean = runtime.mean(loss / runtime.gradient_accumulation_steps());
    if (runtime.rank() == 0 && step % 100 == 0) {
      std::printf("step %d, loss %.5f\n", step, mean);
    }
  }
  model.export_weights("hello.safetensors");  // whole parameters, readable by PyTorch
  return 0;
} catch (const acc::Error& error) {
  std::fprintf(stderr, "hello_sharding: %s\n", error.what());
  return acc::exit_status(error);
}
