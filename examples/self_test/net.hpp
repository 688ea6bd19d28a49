#pragma once

#include "parameter_memory.hpp"

#include <acc/runtime.hpp>

#include <memory>
#include <vector>

namespace self_test {

/// Rows of the task that is learned; every rank and micro-step has its own.
struct Samples {
  std::vector<std::vector<float>> inputs;  ///< [rows][kWidth]
  std::vector<float> targets;              ///< [rows]
};

/// `part` counts micro-steps over all ranks.
Samples make_samples(int part);

/// h <- h + tanh(W h + b), layer by layer, then y = r h; the loss is the mean of (y - target)^2
/// / 2. Widths are odd, so that no number of ranks divides them.
class Net {
 public:
  Net(acc::Runtime& runtime, const acc::Model& model);

  /// Forward and backward; the gradients are in the runtime. Returns the loss.
  double micro_step(const Samples& samples);
  /// All parameters, as every rank sees them.
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
