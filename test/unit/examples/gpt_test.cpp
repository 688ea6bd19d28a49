// SPDX-License-Identifier: Apache-2.0
#include "model/gpt.hpp"

#include "data/batch_file.hpp"
#include "model/gemm.hpp"
#include "run/sampling.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <fstream>
#include <string>

using namespace train_gpt;

namespace {

const std::string kParity = std::string(ACC_TEST_DATA) + "/parity_gpt/";

constexpr ModelConfig kConfig{
    .layers = 2, .heads = 4, .dim = 64, .max_positions = 64, .vocab = 256};

Batch empty_batch(BatchShape shape) {
  const auto count = static_cast<std::size_t>(shape.rows());
  return {std::vector<std::int32_t>(count), std::vector<std::int32_t>(count), shape};
}

/// Compares 20 steps with PyTorch in double precision.
void check_parity(const acc::settings::RuntimeSettings& settings, const acc::ModelOptions& options,
                  double loss_tolerance, double norm_tolerance) {
  const auto reference =
      nlohmann::json::parse(std::ifstream(kParity + "losses.json")).at("single_fp64");
  auto runtime = acc::Runtime::from_settings(settings);
  auto model = runtime.model(0, options);
  Gpt gpt(model, kConfig, {.batch = 8, .time = 64});
  model.load_weights(kParity + "init.safetensors");
  auto optimizer = model.optimizer(
      acc::AdamW{.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1});
  optimizer.set_clip_norm(1.0);
  const BatchFile data(kParity + "tokens.npy", kConfig.vocab);
  Batch batch = empty_batch({.batch = 8, .time = 64});
  for (std::size_t step = 0; step < 20; ++step) {
    CAPTURE(step);
    data.read({.step = static_cast<std::int64_t>(step), .sequence = 0}, batch);
    gpt.train(batch);
    const double loss = gpt.take_loss(runtime, 1.0).value();
    const double norm = optimizer.step().grad_norm;
    CHECK(std::abs(loss - reference.at("loss")[step].get<double>()) <= loss_tolerance);
    CHECK(norm ==
          doctest::Approx(reference.at("grad_norm")[step].get<double>()).epsilon(norm_tolerance));
  }
}

}  // namespace

TEST_CASE("losses and gradient norms equal PyTorch's in double precision") {
  check_parity({}, {}, 2e-5, 1e-4);
}

TEST_CASE("bfloat16 losses are close to PyTorch's") {
  acc::settings::RuntimeSettings settings;
  settings.sharding.mixed_precision = acc::settings::MixedPrecision::bf16;
  SUBCASE("weights widened") {
    check_parity(settings, {}, 3e-3, 2e-2);
  }
  SUBCASE("weights and gradients as they are") {
    if (has_bf16_products()) {
      check_parity(settings, {.bfloat16_on_cpu = true}, 3e-3, 2e-2);
    }
  }
}

TEST_CASE("a model with a separate head and unused positions learns to repeat a sequence") {
  ModelConfig config = kConfig;
  config.tie_word_embeddings = false;
  config.max_positions = 100;
  auto runtime = acc::Runtime::from_settings({});
  auto model = runtime.model(3);
  Gpt gpt(model, config, {.batch = 1, .time = 16});
  CHECK(model.numel() == 2 * 256 * 64 + 100 * 64 + 2 * (12 * 64 * 64 + 13 * 64) + 2 * 64);
  auto optimizer = model.optimizer(acc::AdamW{.lr = 3e-3});
  Batch batch = empty_batch({.batch = 1, .time = 16});
  for (std::size_t i = 0; i < 16; ++i) {
    batch.inputs[i] = static_cast<std::int32_t>(i * i % 251);
    batch.targets[i] = static_cast<std::int32_t>((i + 1) * (i + 1) % 251);
  }
  gpt.train(batch);
  const double first = gpt.take_loss(runtime, 1.0).value();
  optimizer.step();
  CHECK(first == doctest::Approx(std::log(256.0)).epsilon(0.05));
  for (int step = 0; step < 60; ++step) {
    gpt.train(batch);
    (void)gpt.take_loss(runtime, 1.0);
    optimizer.step();
  }
  gpt.train(batch);
  CHECK(gpt.take_loss(runtime, 1.0).value() < 0.1);
  optimizer.step();

  const auto no_grad = model.no_grad();
  const auto sample = sample_tokens(gpt, {0, 1, 4}, 13, 16, 1);
  CHECK(std::vector<std::int32_t>(batch.targets.begin() + 2, batch.targets.end() - 1) == sample);
  CHECK(printable({72, 105}, true) == "Hi");
  CHECK(printable({72, 105}, false) == "72 105 ");
}
