// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "self_test/parameter_memory.hpp"

#include <acc/runtime.hpp>

#include <memory>
#include <vector>

namespace self_test {

/// Training samples; every rank and micro-step has its own.
struct Samples {
  std::vector<std::vector<float>> inputs;  ///< [rows][kWidth]
  std::vector<float> targets;              ///< [rows]
};

/// Returns the samples of a micro-step. part: number of the micro-step, counted over all ranks.
Samples make_samples(int part);

/// A residual network: h <- h + tanh(W h + b) for each layer, then y = r h. The loss is the mean of
/// (y - target)^2 / 2. The width is a prime number, so that ranks get shards of different sizes.
class Net {
 public:
  Net(acc::Runtime& runtime, const acc::Model& model);

  /// Runs forward and backward; the gradients go to the runtime. Returns the loss.
  double micro_step(const Samples& samples);
  /// Returns all parameters, gathered. Collective.
  std::vector<float> weights();
  [[nodiscard]] const acc::Model& model() const { return model_; }

 private:
  struct Layer {
    acc::Unit* unit;
    acc::Parameter weight, bias;
  };
  using Rows = std::vector<std::vector<float>>;  // [rows][kWidth]

  [[nodiscard]] Rows layer_forward(const Layer& layer, const Rows& input) const;
  [[nodiscard]] Rows layer_backward(const Layer& layer, const Rows& input, const Rows& d_output);

  acc::Model model_;
  acc::Unit& root_;
  acc::Parameter readout_;
  std::vector<Layer> layers_;
  std::unique_ptr<ParameterMemory> memory_;
};

}  // namespace self_test
