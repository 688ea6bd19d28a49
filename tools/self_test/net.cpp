// SPDX-License-Identifier: Apache-2.0
#include "self_test/net.hpp"

#include <cmath>

namespace self_test {
namespace {

constexpr std::size_t kWidth = 13;
constexpr std::size_t kLayers = 3;
constexpr int kRows = 5;

void append(std::vector<float>& all, const std::vector<float>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

/// tanh(W x + b) of one row; weights: [kWidth, kWidth], row-major.
std::vector<float> activated(const std::vector<float>& weights, const std::vector<float>& bias,
                             const std::vector<float>& x) {
  std::vector<float> result(kWidth);
  for (std::size_t i = 0; i < kWidth; ++i) {
    float sum = bias[i];
    for (std::size_t j = 0; j < kWidth; ++j) {
      sum += weights[i * kWidth + j] * x[j];
    }
    result[i] = std::tanh(sum);
  }
  return result;
}

}  // namespace

Samples make_samples(int part) {
  Samples samples;
  for (int row = 0; row < kRows; ++row) {
    std::vector<float> input;
    for (std::size_t i = 0; i < kWidth; ++i) {
      input.push_back(std::sin(static_cast<float>(part * kRows + row + 1) *
                               (0.37F + 0.11F * static_cast<float>(i))));
    }
    samples.targets.push_back(input[0] * input[1] + 0.5F * input[2]);
    samples.inputs.push_back(std::move(input));
  }
  return samples;
}

Net::Net(acc::Runtime& runtime, const acc::Model& model)
    : model_(model),
      root_(model_.root("net", "SelfTestNet")),
      readout_(root_.parameter("readout", {kWidth}, acc::normal(0.3F))) {
  constexpr auto kSide = static_cast<std::int64_t>(kWidth);
  for (std::size_t i = 0; i < kLayers; ++i) {
    acc::Unit& unit = model_.unit("net.layers." + std::to_string(i), "SelfTestLayer");
    layers_.push_back({&unit, unit.parameter("weight", {kSide, kSide}, acc::normal(0.2F)),
                       unit.parameter("bias", {kSide}, acc::zeros(), {.weight_decay = false})});
  }
  memory_ = parameter_memory(runtime, model_);
}

// The root unit holds the readout, so its scopes enclose those of the layers.
double Net::micro_step(const Samples& samples) {
  const std::size_t rows = samples.targets.size();
  std::vector<Rows> hidden = {samples.inputs};
  std::vector<float> slopes(rows, 0.0F);
  double loss = 0.0;
  {
    const auto root = root_.forward();
    for (const Layer& layer : layers_) {
      hidden.push_back(layer_forward(layer, hidden.back()));
    }
    const std::vector<float> readout = memory_->read(root.raw(readout_), kWidth);
    for (std::size_t row = 0; row < rows; ++row) {
      float y = 0.0F;
      for (std::size_t i = 0; i < kWidth; ++i) {
        y += readout[i] * hidden.back()[row][i];
      }
      slopes[row] = (y - samples.targets[row]) / static_cast<float>(rows);
      loss += 0.5 * static_cast<double>(slopes[row] * (y - samples.targets[row]));
    }
  }
  auto root = root_.backward();
  const std::vector<float> readout = memory_->read(root.raw(readout_), kWidth);
  std::vector<float> d_readout(kWidth, 0.0F);
  Rows d_hidden(rows, std::vector<float>(kWidth));
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t i = 0; i < kWidth; ++i) {
      d_readout[i] += slopes[row] * hidden.back()[row][i];
      d_hidden[row][i] = slopes[row] * readout[i];
    }
  }
  memory_->add(root.raw_grad_to_add(readout_), d_readout);
  for (std::size_t i = kLayers; i-- > 0;) {
    d_hidden = layer_backward(layers_[i], hidden[i], d_hidden);
  }
  return loss;
}

Net::Rows Net::layer_forward(const Layer& layer, const Rows& input) const {
  const auto use = layer.unit->forward();
  const auto weights = memory_->read(use.raw(layer.weight), kWidth * kWidth);
  const auto bias = memory_->read(use.raw(layer.bias), kWidth);
  Rows output;
  for (const std::vector<float>& x : input) {
    std::vector<float> h = activated(weights, bias, x);
    for (std::size_t i = 0; i < kWidth; ++i) {
      h[i] += x[i];
    }
    output.push_back(std::move(h));
  }
  return output;
}

// Recomputes tanh from the layer's input instead of saving it.
Net::Rows Net::layer_backward(const Layer& layer, const Rows& input, const Rows& d_output) {
  auto use = layer.unit->backward();
  const auto weights = memory_->read(use.raw(layer.weight), kWidth * kWidth);
  const auto bias = memory_->read(use.raw(layer.bias), kWidth);
  std::vector<float> d_weights(kWidth * kWidth, 0.0F);
  std::vector<float> d_bias(kWidth, 0.0F);
  Rows d_input = d_output;  // the residual path
  for (std::size_t row = 0; row < input.size(); ++row) {
    const std::vector<float> t = activated(weights, bias, input[row]);
    for (std::size_t i = 0; i < kWidth; ++i) {
      const float slope = d_output[row][i] * (1.0F - t[i] * t[i]);
      d_bias[i] += slope;
      for (std::size_t j = 0; j < kWidth; ++j) {
        d_weights[i * kWidth + j] += slope * input[row][j];
        d_input[row][j] += slope * weights[i * kWidth + j];
      }
    }
  }
  memory_->add(use.raw_grad_to_add(layer.weight), d_weights);
  memory_->add(use.raw_grad_to_add(layer.bias), d_bias);
  return d_input;
}

std::vector<float> Net::weights() {
  const auto guard = model_.no_grad();
  const auto root = root_.forward();
  std::vector<float> all = memory_->read(root.raw(readout_), kWidth);
  for (const Layer& layer : layers_) {
    const auto use = layer.unit->forward();
    append(all, memory_->read(use.raw(layer.weight), kWidth * kWidth));
    append(all, memory_->read(use.raw(layer.bias), kWidth));
  }
  return all;
}

}  // namespace self_test
