// SPDX-License-Identifier: Apache-2.0
// A model that differs from the examples: odd sizes, a unit that is used twice in one forward, a
// unit with frozen and trained parameters, a tied output weight. It learns (3 * id + 1) mod 13.
//
//   odd_net            describe a runtime that is created from settings in the program
//   odd_net OUT        train and write every weight as text
//   odd_net A B BOUND  compare two such files

#include <acc/runtime.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <vector>

namespace {

constexpr int kIds = 13;
constexpr int kDim = 7;
using Row = std::array<float, kDim>;

class OddNet {
 public:
  explicit OddNet(acc::Model model)
      : root_(model.root("net", "OddNet")),
        mix_(model.unit("net.mix", "Mix")),
        embedding_(root_.parameter("embedding.weight", {kIds, kDim}, acc::normal(0.5F))),
        weight_(mix_.parameter("weight", {kDim, kDim}, acc::normal(0.4F))),
        gain_(mix_.parameter("gain", {kDim}, acc::uniform(0.9F, 1.1F), {.trainable = false})),
        bias_(mix_.parameter("bias", {kDim}, acc::zeros(), {.weight_decay = false})) {
    root_.tie("net.head.weight", embedding_);
  }

  /// Trains on one sequence of ids. Returns the mean loss; the runtime holds the gradients.
  double micro_step(const std::vector<int>& ids) {
    const auto scale = 1.0F / static_cast<float>(ids.size());
    std::vector<Row> input, hidden, output;
    std::vector<std::array<float, kIds>> slopes;
    double loss = 0.0;
    {
      auto root = root_.forward();
      for (const int id : ids) {
        Row x;
        std::copy_n(root[embedding_] + id * kDim, kDim, x.begin());
        input.push_back(x);
      }
      hidden = mix(input);
      output = mix(hidden);
      for (std::size_t i = 0; i < ids.size(); ++i) {
        slopes.emplace_back();
        loss += scale * head(root[embedding_], output[i], (3 * ids[i] + 1) % kIds, slopes.back());
      }
    }
    auto root = root_.backward();
    const float* const e = root[embedding_];
    float* const de = root.grad_to_add(embedding_);
    std::vector<Row> d_output(ids.size(), Row{});
    for (std::size_t i = 0; i < ids.size(); ++i) {
      for (int k = 0; k < kIds; ++k) {
        for (int j = 0; j < kDim; ++j) {
          d_output[i][j] += scale * slopes[i][k] * e[k * kDim + j];
          de[k * kDim + j] += scale * slopes[i][k] * output[i][j];
        }
      }
    }
    const auto d_input = mix_backward(input, hidden, mix_backward(hidden, output, d_output));
    for (std::size_t i = 0; i < ids.size(); ++i) {
      for (int j = 0; j < kDim; ++j) {
        de[ids[i] * kDim + j] += d_input[i][j];
      }
    }
    return loss;
  }

  void write(acc::Model model, std::ostream& out) {
    const auto guard = model.no_grad();
    const auto root = root_.forward();
    const auto mix = mix_.forward();
    const auto list = [&](const float* values, int numel) {
      for (int i = 0; i < numel; ++i) {
        out << std::hexfloat << values[i] << '\n';
      }
    };
    list(root[embedding_], kIds * kDim);
    list(mix[weight_], kDim * kDim);
    list(mix[gain_], kDim);
    list(mix[bias_], kDim);
  }

 private:
  // y = tanh(gain * (x W + b))
  std::vector<Row> mix(const std::vector<Row>& input) {
    auto use = mix_.forward();
    std::vector<Row> output;
    for (const Row& x : input) {
      Row y;
      for (int j = 0; j < kDim; ++j) {
        float sum = use[bias_][j];
        for (int i = 0; i < kDim; ++i) {
          sum += x[i] * use[weight_][i * kDim + j];
        }
        y[j] = std::tanh(use[gain_][j] * sum);
      }
      output.push_back(y);
    }
    return output;
  }

  std::vector<Row> mix_backward(const std::vector<Row>& input, const std::vector<Row>& output,
                                const std::vector<Row>& d_output) {
    auto use = mix_.backward();
    const float* const w = use[weight_];
    float* const dw = use.grad_to_add(weight_);
    float* const db = use.grad_to_add(bias_);
    std::vector<Row> d_input(input.size(), Row{});
    for (std::size_t n = 0; n < input.size(); ++n) {
      for (int j = 0; j < kDim; ++j) {
        const float slope = d_output[n][j] * (1.0F - output[n][j] * output[n][j]) * use[gain_][j];
        db[j] += slope;
        for (int i = 0; i < kDim; ++i) {
          dw[i * kDim + j] += slope * input[n][i];
          d_input[n][i] += slope * w[i * kDim + j];
        }
      }
    }
    return d_input;
  }

  static double head(const float* e, const Row& x, int target, std::array<float, kIds>& slopes) {
    std::array<double, kIds> logits{};
    double total = 0.0;
    for (int k = 0; k < kIds; ++k) {
      for (int j = 0; j < kDim; ++j) {
        logits[k] += e[k * kDim + j] * x[j];
      }
      total += std::exp(logits[k]);
    }
    for (int k = 0; k < kIds; ++k) {
      slopes[k] = static_cast<float>(std::exp(logits[k]) / total - (k == target ? 1.0 : 0.0));
    }
    return std::log(total) - logits[target];
  }

  acc::Unit& root_;
  acc::Unit& mix_;
  acc::Parameter embedding_, weight_, gain_, bias_;
};

int train(const char* path) {
  auto runtime = acc::Runtime::from_environment();
  auto model = runtime.model(7);
  OddNet net(model);
  auto optimizer = model.optimizer(acc::AdamW{.lr = 0.02, .weight_decay = 0.01});
  double first = 0.0;
  double last = 0.0;
  for (int step = 0; step < 40; ++step) {
    double loss = 0.0;
    for (int micro = 0; micro < runtime.gradient_accumulation_steps(); ++micro) {
      std::vector<int> ids;
      for (int i = 0; i < 6; ++i) {
        ids.push_back((step * 5 + runtime.rank() * 6 + micro * 3 + i) % kIds);
      }
      loss += net.micro_step(ids) / runtime.gradient_accumulation_steps();
    }
    optimizer.step();
    last = runtime.mean(loss);
    first = step == 0 ? last : first;
  }
  std::ofstream out;
  if (runtime.rank() == 0) {
    out.open(path);
    std::cout << runtime.describe() << ": loss " << first << " -> " << last << '\n';
  }
  net.write(model, out);
  runtime.barrier();
  return last < first ? 0 : 1;
}

int compare(const char* a_path, const char* b_path, double bound) {
  std::ifstream a_file(a_path);
  std::ifstream b_file(b_path);
  double most = 0.0;
  int count = 0;
  std::string a;
  std::string b;
  while (a_file >> a && b_file >> b) {
    most =
        std::max(most, std::abs(std::strtod(a.c_str(), nullptr) - std::strtod(b.c_str(), nullptr)));
    ++count;
  }
  std::cout << count << " weights, largest difference " << most << '\n';
  return count == kIds * kDim + kDim * kDim + 2 * kDim && most <= bound ? 0 : 1;
}

int describe() {
  const acc::settings::RuntimeSettings settings;
  std::cout << acc::Runtime::from_settings(settings, nullptr).describe() << '\n';
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return argc == 1   ? describe()
           : argc == 4 ? compare(argv[1], argv[2], std::atof(argv[3]))
                       : train(argv[1]);
  } catch (const acc::Error& error) {
    std::cerr << "odd_net: " << error.what() << '\n';
    return acc::exit_status(error);
  }
}
