// SPDX-License-Identifier: Apache-2.0
#include "cuda/gpt.hpp"

#include "cuda/device_buffer.hpp"
#include "data/batch_file.hpp"
#include "data/global_batch.hpp"
#include "model/gpt.hpp"
#include "run/sampling.hpp"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

using namespace train_gpt;

namespace {

/// Returns the folder of the test data: ACC_TEST_DATA if the tests run on another machine than the
/// one that built them.
std::string parity_folder() {
  const char* moved = std::getenv("ACC_TEST_DATA");
  return std::string(moved == nullptr ? ACC_TEST_DATA : moved) + "/parity_gpt/";
}
const std::string kParity = parity_folder();

constexpr ModelConfig kConfig{
    .layers = 2, .heads = 4, .dim = 64, .max_positions = 64, .vocab = 256};

Batch empty_batch(BatchShape shape) {
  const auto count = static_cast<std::size_t>(shape.rows());
  return {std::vector<std::int32_t>(count), std::vector<std::int32_t>(count), shape};
}

/// Compute capability of the GPU: 10 * major + minor.
int capability() {
  int major = 0;
  int minor = 0;
  REQUIRE(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess);
  REQUIRE(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0) == cudaSuccess);
  return 10 * major + minor;
}

/// Number of calls so far that gave work to the stand-in GPU; 0 on a real one.
long issued() {
  auto* const count = reinterpret_cast<long (*)()>(dlsym(RTLD_DEFAULT, "acc_standin_issued"));
  return count == nullptr ? 0 : count();
}

acc::settings::RuntimeSettings on_gpu(acc::settings::MixedPrecision precision,
                                      int accumulation = 1) {
  acc::settings::RuntimeSettings settings;
  settings.device = acc::settings::Device::cuda;
  settings.sharding.mixed_precision = precision;
  settings.sharding.gradient_accumulation_steps = accumulation;
  return settings;
}

/// Sets an environment variable for the lifetime of the object.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  ~Variable() { unsetenv(name_); }

 private:
  const char* name_;
};

struct Step {
  double loss, norm;
};

/// Trains some steps on the parity data, split into micro-batches. sequences: of a step; PyTorch's
/// losses are those of 8, and two of our runs can be compared with fewer.
std::vector<Step> parity_run(const acc::settings::RuntimeSettings& settings, int steps,
                             std::int64_t most_logits = cuda::kMostLogits,
                             std::int64_t sequences = 8) {
  auto runtime = acc::Runtime::from_settings(settings);
  auto model = runtime.model(0, {.fp8 = true});
  const int micro_steps = runtime.gradient_accumulation_steps();
  const GlobalBatch global(sequences, {.rank = 0, .world_size = 1, .micro_steps = micro_steps});
  const auto gpt = cuda::make_gpt(runtime, model, kConfig,
                                  {.batch = global.largest_share(), .time = 64}, most_logits);
  model.load_weights(kParity + "init.safetensors");
  auto optimizer = model.optimizer(
      acc::AdamW{.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1});
  optimizer.set_clip_norm(1.0);
  const BatchFile data(kParity + "tokens.npy", kConfig.vocab);
  std::vector<Step> result;
  for (int step = 0; step < steps; ++step) {
    for (int micro_step = 0; micro_step < micro_steps; ++micro_step) {
      const Share share = global.share(micro_step);
      Batch batch = empty_batch({.batch = share.count, .time = 64});
      batch.weight = share.weight;
      batch.loss_scale = static_cast<float>(optimizer.loss_scale());
      data.read({.step = step, .sequence = share.first}, batch);
      gpt->train(batch);
    }
    const double norm = optimizer.step().grad_norm;
    result.push_back({gpt->take_loss(runtime, micro_steps).value(), norm});
  }
  return result;
}

/// Trains with two sequences in each step.
std::vector<Step> short_run(const acc::settings::RuntimeSettings& settings, int steps) {
  return parity_run(settings, steps, cuda::kMostLogits, 2);
}

void check_parity(const std::vector<Step>& run, double loss_tolerance, double norm_tolerance) {
  const auto reference =
      nlohmann::json::parse(std::ifstream(kParity + "losses.json")).at("single_fp64");
  for (std::size_t step = 0; step < run.size(); ++step) {
    CAPTURE(step);
    CHECK(std::abs(run[step].loss - reference.at("loss")[step].get<double>()) <= loss_tolerance);
    CHECK(run[step].norm ==
          doctest::Approx(reference.at("grad_norm")[step].get<double>()).epsilon(norm_tolerance));
  }
}

}  // namespace

TEST_CASE("fp32 on a GPU: losses and gradient norms equal PyTorch's in double precision") {
  check_parity(parity_run(on_gpu(acc::settings::MixedPrecision::no), 3), 2e-5, 1e-4);
}

TEST_CASE("activation checkpointing, with and without offload, does not change the results") {
  for (const auto precision :
       {acc::settings::MixedPrecision::no, acc::settings::MixedPrecision::bf16}) {
    auto settings = on_gpu(precision, 2);
    settings.sharding.deterministic = true;
    const auto plain = short_run(settings, 2);
    settings.sharding.activation_checkpointing = true;
    for (const bool offload : {false, true}) {
      CAPTURE(offload);
      settings.sharding.activation_checkpointing_offload = offload;
      const auto run = short_run(settings, 2);
      for (std::size_t step = 0; step < plain.size(); ++step) {
        CHECK(run[step].loss == plain[step].loss);
        CHECK(run[step].norm == plain[step].norm);
      }
    }
  }
}

TEST_CASE("micro-steps of 2, 3 and 3 sequences give the same losses as one step") {
  check_parity(parity_run(on_gpu(acc::settings::MixedPrecision::no, 3), 2), 2e-5, 1e-4);
}

TEST_CASE("fused and separate matrix product epilogues give the same losses") {
  for (const char* fused : {"gelu,bias", "none"}) {
    const Variable variable("TRAIN_GPT_FUSE", fused);
    check_parity(parity_run(on_gpu(acc::settings::MixedPrecision::no), 2), 2e-5, 1e-4);
  }
}

TEST_CASE("logits computed in pieces give the same losses") {
  constexpr std::int64_t kHalf = 256 * 256;  // logits of half of the 8 x 64 rows
  check_parity(parity_run(on_gpu(acc::settings::MixedPrecision::no), 2, kHalf), 2e-5, 1e-4);
}

TEST_CASE("bf16 on a GPU gives the same losses within its precision") {
  check_parity(parity_run(on_gpu(acc::settings::MixedPrecision::bf16), 2), 0.02, 0.03);
}

TEST_CASE("fp16 on a GPU with a loss scaler gives the same losses within its precision") {
  check_parity(parity_run(on_gpu(acc::settings::MixedPrecision::fp16), 2), 0.01, 0.03);
}

TEST_CASE("CUDA graphs do not change the results, and replace most launches") {
  struct Case {
    acc::settings::MixedPrecision precision;
    bool checkpointing;
  };
  using acc::settings::MixedPrecision;
  std::vector<Case> cases = {{MixedPrecision::bf16, true}, {MixedPrecision::fp16, false}};
  if (capability() >= 89) {
    cases.push_back({MixedPrecision::fp8, false});
  }
  for (const Case& each : cases) {
    CAPTURE(acc::settings::to_string(each.precision));
    auto settings = on_gpu(each.precision, 2);
    settings.sharding.deterministic = true;  // cuDNN's order of sums
    settings.sharding.activation_checkpointing = each.checkpointing;
    constexpr int kSteps = 4;
    const long start = issued();
    const auto plain = short_run(settings, kSteps);
    const long without = issued() - start;
    const Variable variable("TRAIN_GPT_GRAPHS", "1");
    const auto run = short_run(settings, kSteps);
    const long with = issued() - start - without;
    for (std::size_t step = 0; step < plain.size(); ++step) {
      CHECK(run[step].loss == plain[step].loss);
      CHECK(run[step].norm == plain[step].norm);
    }
    CHECK(10 * with <= 8 * without);  // two of four steps are replayed
  }
}

TEST_CASE("fp8 trains as bf16 within its precision, or is refused by the GPU's capability") {
  using acc::settings::MixedPrecision;
  auto settings = on_gpu(MixedPrecision::fp8, 2);
  if (capability() < 89) {
    CHECK_THROWS_WITH_AS(parity_run(settings, 1),
                         doctest::Contains("mixed_precision fp8 needs a GPU of compute capability "
                                           "8.9 or newer; cuda:0 has 8.0; use bf16"),
                         acc::Error);
    return;
  }
  constexpr int kSteps = 3;
  const auto expected = short_run(on_gpu(MixedPrecision::bf16, 2), kSteps);
  for (const bool e5m2 : {true, false}) {
    CAPTURE(e5m2);
    const Variable format("ACC_FP8_FORMAT", e5m2 ? "HYBRID" : "E4M3");
    const Variable algorithm("ACC_FP8_AMAX_COMPUTE_ALGO", e5m2 ? "max" : "most_recent");
    const auto run = short_run(settings, kSteps);
    CHECK(run.front().loss == doctest::Approx(expected.front().loss).epsilon(1e-3));
    bool differs = false;
    for (std::size_t step = 0; step < run.size(); ++step) {
      CAPTURE(step);
      CHECK(std::abs(run[step].loss - expected[step].loss) < 0.02);
      CHECK(run[step].norm == doctest::Approx(expected[step].norm).epsilon(0.1));
      differs = differs || run[step].loss != expected[step].loss;
    }
    CHECK(differs);  // products were computed in fp8
  }
}

TEST_CASE("an odd vocabulary, a separate head and each attention equal the CPU's results") {
  const ModelConfig config{.layers = 1,
                           .heads = 1,
                           .dim = 64,
                           .max_positions = 32,
                           .vocab = 53,
                           .tie_word_embeddings = false};
  const BatchShape shape{.batch = 2, .time = 21};
  Batch batch = empty_batch(shape);
  for (std::size_t i = 0; i < batch.inputs.size(); ++i) {
    batch.inputs[i] = static_cast<std::int32_t>(i * i % 53);
    batch.targets[i] = static_cast<std::int32_t>((i + 1) * (i + 1) % 53);
  }
  const auto run = [&](const acc::settings::RuntimeSettings& settings) {
    auto runtime = acc::Runtime::from_settings(settings);
    auto model = runtime.model(3);
    const auto gpt = make_language_model(runtime, model, config, shape);
    auto optimizer = model.optimizer(acc::AdamW{.lr = 3e-3});
    std::vector<double> figures;
    for (int step = 0; step < 4; ++step) {
      gpt->train(batch);
      figures.push_back(optimizer.step().grad_norm);
      figures.push_back(gpt->take_loss(runtime, 1.0).value());
    }
    const auto no_grad = model.no_grad();
    const auto logits = gpt->next_token_logits(std::vector<std::int32_t>{0, 1, 4});
    figures.insert(figures.end(), logits.begin(), logits.end());
    return figures;
  };
  const auto expected = run({});
  const auto compare = [&](const std::vector<double>& figures, double tolerance) {
    REQUIRE(figures.size() == expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(i);
      CHECK(std::abs(figures[i] - expected[i]) < tolerance * (1.0 + std::abs(expected[i])));
    }
  };
  compare(run(on_gpu(acc::settings::MixedPrecision::no)), 1e-4);
  for (const char* attention : {"auto", "kernels"}) {
    CAPTURE(attention);
    const Variable variable("TRAIN_GPT_ATTENTION", attention);
    compare(run(on_gpu(acc::settings::MixedPrecision::bf16)), 3e-2);
  }
}

TEST_CASE("sizes that the kernels do not support are refused before any allocation") {
  auto runtime = acc::Runtime::from_settings(on_gpu(acc::settings::MixedPrecision::no));
  auto model = runtime.model();
  const auto make = [&](std::int64_t dim, std::int64_t heads) {
    make_language_model(runtime, model,
                        {.layers = 1, .heads = heads, .dim = dim, .max_positions = 8, .vocab = 16},
                        {.batch = 1, .time = 8});
  };
  CHECK_THROWS_WITH_AS(make(36, 4), doctest::Contains("dim must be a multiple of 8"), acc::Error);
  CHECK_THROWS_WITH_AS(make(264, 1), doctest::Contains("dim / heads must be at most 256"),
                       acc::Error);
}

TEST_CASE("the model's memory is in the runtime's report, as long as the model lives") {
  auto runtime = acc::Runtime::from_settings(on_gpu(acc::settings::MixedPrecision::bf16));
  auto model = runtime.model();
  const std::int64_t before = model.memory().device_bytes;
  {
    const auto gpt = cuda::make_gpt(runtime, model, kConfig, {.batch = 2, .time = 64});
    CHECK(gpt->activation_bytes() > 0);
    CHECK(model.memory().device_bytes - before == gpt->activation_bytes());
    CHECK(model.memory().device_peak_bytes >= before + gpt->activation_bytes());
  }
  CHECK(model.memory().device_bytes == before);
}

TEST_CASE("GPU out of memory: the error names purpose, requested and free memory") {
  const std::int64_t before = cuda::device_bytes();
  CHECK_THROWS_WITH_AS(cuda::DeviceMemory(std::size_t{1} << 43, "activations"),
                       doctest::Contains("GPU out of memory (OOM): cannot allocate 8388608 MiB for "
                                         "activations"),
                       acc::Error);
  CHECK(cuda::device_bytes() == before);
  {
    const cuda::DeviceMemory memory(1 << 20, "activations");
    CHECK(cuda::device_bytes() == before + (1 << 20));
  }
  CHECK(cuda::device_bytes() == before);
}
