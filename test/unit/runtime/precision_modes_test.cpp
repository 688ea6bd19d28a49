// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/store.hpp"
#include "acc/runtime.hpp"
#include "acc/settings/strategy.hpp"
#include "support/run_ranks.hpp"
#include "support/temporary_folder.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

// Dtypes in which weights, moments and gradients are kept and sent, as a program sees them.
namespace {

using acc::DType;
using acc::settings::MixedPrecision;
using acc::settings::ShardingSettings;
using acc::settings::Strategy;
using acc::test::Job;

constexpr std::int64_t kModeNumel = 64 * 64;
/// A value that rounds to 1 in bfloat16, to 1 + 2^-9 in float16, and is exact in float32.
constexpr float kOdd = 1.0F + 0x1p-9F + 0x1p-13F;
constexpr float kOddInBf16 = 1.0F;
constexpr float kOddInF16 = 1.0F + 0x1p-9F;

constexpr Strategy kModeStrategies[] = {Strategy::no_shard, Strategy::shard_optimizer,
                                        Strategy::shard_grad_op, Strategy::full_shard};

/// One unit with one weight, whose elements have the same initial value and the same gradient.
struct Run {
  Job job = {};
  DType load = DType::float32;
  float weight = 1.0F;
  float gradient = 1.0F;
  int steps = 1;
  std::optional<acc::AdamW> adamw = {};  ///< absent: SGD
  acc::Sgd sgd = {.lr = 0.0};
  acc::Initializer initializer = {};  ///< instead of `weight`
  std::int64_t frozen = 0;            ///< elements of an additional frozen weight
  using Hook = std::function<void(acc::Runtime&, acc::Model&, acc::Optimizer&)>;
  Hook before = {};  ///< runs before the first step
  Hook then = {};    ///< runs after the last step
};

struct Outcome {
  std::vector<float> weights;
  double grad_norm = 0.0;
  acc::MemoryReport memory;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

Outcome train(const Run& run) {
  Outcome result;
  std::mutex mutex;
  acc::test::run_ranks(run.job, [&](const auto& settings, auto store) {
    auto runtime = acc::Runtime::from_settings(settings, std::move(store));
    auto model = runtime.model(7, {.dtype = run.load});
    auto& unit = model.unit("only", "Only");
    const auto weight = unit.parameter(
        "weight", {kModeNumel}, run.initializer ? run.initializer : acc::constant(run.weight));
    if (run.frozen > 0) {
      unit.parameter("frozen", {run.frozen}, acc::ones(), {.trainable = false});
    }
    auto optimizer = run.adamw ? model.optimizer(*run.adamw) : model.optimizer(run.sgd);
    if (run.before) {
      run.before(runtime, model, optimizer);
    }
    Outcome mine;
    for (int step = 0; step < run.steps; ++step) {
      { auto use = unit.forward(); }
      {
        auto use = unit.backward();
        std::fill_n(use.grad_to_add(weight), kModeNumel, run.gradient);
      }
      mine.grad_norm = optimizer.step().grad_norm;
    }
    {
      const auto guard = model.no_grad();
      const auto use = unit.forward();
      mine.weights.assign(use[weight], use[weight] + kModeNumel);
    }
    mine.memory = model.memory();
    if (run.then) {
      run.then(runtime, model, optimizer);
    }
    runtime.barrier();
    const std::lock_guard lock(mutex);
    if (!result.weights.empty() && !same_bits(mine.weights, result.weights)) {
      throw std::runtime_error("ranks disagree about the weights");
    }
    result = std::move(mine);
  });
  return result;
}

ShardingSettings in_precision(Strategy strategy, MixedPrecision mixed = MixedPrecision::no) {
  ShardingSettings settings;
  settings.strategy = strategy;
  settings.mixed_precision = mixed;
  settings.loss_scaling.static_scale = 1.0;
  return settings;
}

/// Values that no 16-bit format can represent.
acc::Initializer uneven() {
  return acc::uniform(-2.0F, 2.0F);
}

bool fits(float value, DType dtype) {
  if (dtype == DType::float32 || value == 0.0F) {
    return true;
  }
  // Significant bits; none of these values is subnormal.
  const int bits = dtype == DType::bfloat16 ? 8 : 11;
  int exponent = 0;
  const float scaled = std::ldexp(std::frexp(value, &exponent), bits);
  return scaled == std::nearbyint(scaled);
}

/// The header of a safetensors file.
std::string header_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::uint64_t length = 0;
  file.read(reinterpret_cast<char*>(&length), sizeof(length));
  std::string header(length, '\0');
  file.read(header.data(), static_cast<std::streamsize>(length));
  return header;
}

}  // namespace

TEST_CASE("without mixed precision a 16-bit model is kept, gathered and updated in 16 bits") {
  for (const DType load : {DType::bfloat16, DType::float16}) {
    std::optional<Outcome> first;
    for (const Strategy strategy : kModeStrategies) {
      for (const int machines : {1, 2}) {
        CAPTURE(std::string(to_string(load)));
        CAPTURE(std::string(to_string(strategy)));
        CAPTURE(machines);
        const Outcome seen = train(
            {.job = {.world_size = 4, .num_machines = machines, .sharding = in_precision(strategy)},
             .load = load,
             .gradient = 0.375F,
             .steps = 4,
             .adamw = acc::AdamW{.lr = 0.01, .weight_decay = 0.1},
             .initializer = uneven()});
        first = first.value_or(seen);
        // Equal gradients that fit the format: sums are exact.
        CHECK(seen.weights == first->weights);
        CHECK(std::all_of(seen.weights.begin(), seen.weights.end(),
                          [&](float value) { return fits(value, load); }));
      }
    }
  }
}

TEST_CASE("bytes held in each mode equal the formula") {
  struct Row {
    const char* name;
    DType load;
    MixedPrecision mixed;
    bool deepspeed;
    int weights, frozen, moments;  ///< bytes per element, if they are sharded
  };
  for (const Row& row :
       {Row{"fp32", DType::float32, MixedPrecision::no, false, 4, 4, 8},
        Row{"low precision", DType::bfloat16, MixedPrecision::no, false, 2, 2, 4},
        Row{"low precision in fp16", DType::float16, MixedPrecision::no, false, 2, 2, 4},
        Row{"FSDP mixed", DType::bfloat16, MixedPrecision::bf16, false, 4, 2, 8},
        Row{"FSDP mixed of fp32", DType::float32, MixedPrecision::fp16, false, 4, 4, 8},
        Row{"DeepSpeed", DType::float32, MixedPrecision::bf16, true, 4, 2, 8}}) {
    for (const Strategy strategy : kModeStrategies) {
      CAPTURE(row.name);
      CAPTURE(std::string(to_string(strategy)));
      Job job{.world_size = 2, .sharding = in_precision(strategy, row.mixed)};
      job.sharding.round_initial_weights = row.deepspeed;
      const acc::settings::StrategySwitches on = acc::settings::switches(strategy);
      const std::int64_t shards = on.shard_optimizer ? 2 : 1;
      // If weights are gathered in the optimizer's dtype, the gathered copy is the master. ZeRO 1
      // keeps all of it.
      const auto of = [&](std::int64_t numel, int nbytes, bool shared) {
        return numel * nbytes / (shared && !on.shard_parameters ? 1 : shards);
      };
      const bool mixed = row.mixed != MixedPrecision::no;
      const Outcome seen =
          train({.job = job, .load = row.load, .adamw = acc::AdamW{}, .frozen = 2 * kModeNumel});
      CHECK(seen.memory.parameter_bytes ==
            of(kModeNumel, row.weights, !mixed) +
                of(2 * kModeNumel, row.frozen, !mixed || row.frozen == 2));
      CHECK(seen.memory.optimizer_bytes == kModeNumel * row.moments / shards);
    }
  }
}

TEST_CASE("gradients are reduced in the mode's dtype or in the configured one") {
  struct Row {
    MixedPrecision mixed;
    std::optional<MixedPrecision> reduce;
    float expected;
  };
  for (const Row& row : {Row{MixedPrecision::no, std::nullopt, kOdd},
                         Row{MixedPrecision::no, MixedPrecision::bf16, kOddInBf16},
                         Row{MixedPrecision::no, MixedPrecision::fp16, kOddInF16},
                         Row{MixedPrecision::bf16, std::nullopt, kOddInBf16},
                         Row{MixedPrecision::bf16, MixedPrecision::no, kOdd},
                         Row{MixedPrecision::bf16, MixedPrecision::fp16, kOddInF16},
                         Row{MixedPrecision::fp16, std::nullopt, kOddInF16},
                         Row{MixedPrecision::fp16, MixedPrecision::no, kOdd}}) {
    for (const Strategy strategy : kModeStrategies) {
      for (const int machines : {1, 2, 4}) {
        CAPTURE(std::string(to_string(row.mixed)));
        CAPTURE(std::string(to_string(strategy)));
        CAPTURE(machines);
        Job job{.world_size = 4,
                .num_machines = machines,
                .sharding = in_precision(strategy, row.mixed)};
        job.sharding.reduce_precision = row.reduce;
        // Whole gradients are rounded only if that is asked for. The all_reduce of no_shard rounds
        // what it sends to other machines.
        const bool shards = acc::settings::switches(strategy).shard_gradients;
        const bool sends = strategy != Strategy::no_shard || machines > 1;
        const float expected = shards || (row.reduce && sends) ? row.expected : kOdd;
        CHECK(train({.job = job, .gradient = kOdd}).grad_norm ==
              doctest::Approx(64.0 * expected).epsilon(1e-9));
      }
    }
  }
}

TEST_CASE("a gradient beyond float16 becomes infinite and stays so, NaN stays NaN") {
  for (const Strategy strategy : {Strategy::shard_grad_op, Strategy::full_shard}) {
    for (const int machines : {1, 2}) {
      for (const int world : {2, 4}) {
        CAPTURE(world);
        CAPTURE(machines);
        const auto norm = [&](MixedPrecision mixed, float gradient) {
          return train({.job = {.world_size = world,
                                .num_machines = machines,
                                .sharding = in_precision(strategy, mixed)},
                        .gradient = gradient})
              .grad_norm;
        };
        // Part of the division by the number of ranks precedes the rounding: 2, for 2 and 4 ranks.
        CHECK(std::isinf(norm(MixedPrecision::fp16, 140'000.0F)));
        CHECK(norm(MixedPrecision::fp16, 120'000.0F) == doctest::Approx(64.0 * 120'000.0));
        CHECK(norm(MixedPrecision::fp16, 60'000.0F) == doctest::Approx(64.0 * 60'000.0));
        CHECK(std::isfinite(norm(MixedPrecision::bf16, 70'000.0F)));
        CHECK(std::isnan(norm(MixedPrecision::fp16, std::nanf(""))));
        CHECK(std::isnan(norm(MixedPrecision::bf16, std::nanf(""))));
      }
    }
  }
}

TEST_CASE("master weights start with the loaded values, with DeepSpeed rounded to 16 bits") {
  struct Row {
    DType load;
    MixedPrecision mixed;
    bool deepspeed;
    float expected;
    const char* dtype;
  };
  for (const Row& row : {Row{DType::float32, MixedPrecision::bf16, false, kOdd, "F32"},
                         Row{DType::float32, MixedPrecision::bf16, true, kOddInBf16, "F32"},
                         Row{DType::float32, MixedPrecision::fp16, true, kOddInF16, "F32"},
                         Row{DType::bfloat16, MixedPrecision::bf16, false, kOddInBf16, "F32"},
                         Row{DType::float16, MixedPrecision::bf16, false, kOddInF16, "F32"},
                         Row{DType::float16, MixedPrecision::bf16, true, kOddInBf16, "F32"},
                         Row{DType::bfloat16, MixedPrecision::no, false, kOddInBf16, "BF16"},
                         Row{DType::float16, MixedPrecision::no, false, kOddInF16, "F16"}}) {
    for (const bool from_file : {false, true}) {
      CAPTURE(row.expected);
      CAPTURE(row.dtype);
      CAPTURE(from_file);
      const acc::test::TemporaryFolder folder;
      const std::string initial = (folder.path() / "initial.safetensors").string();
      const std::string exported = (folder.path() / "exported.safetensors").string();
      const auto exporting = [](const std::string& path) {
        return [path](auto&, acc::Model& model, auto&) { model.export_weights(path); };
      };
      const auto loading = [](const std::string& path) {
        return [path](auto&, acc::Model& model, auto&) { model.load_weights(path); };
      };
      train({.weight = kOdd, .then = exporting(initial)});
      Run run{.job = {.world_size = 2, .sharding = in_precision(Strategy::full_shard, row.mixed)},
              .load = row.load,
              .weight = from_file ? 5.0F : kOdd,
              .then = exporting(exported)};
      run.job.sharding.round_initial_weights = row.deepspeed;
      if (from_file) {
        run.before = loading(initial);
      }
      train(run);
      CHECK(header_of(exported).find(std::string("\"") + row.dtype + "\"") != std::string::npos);
      const Outcome seen = train({.before = loading(exported)});
      CHECK(seen.weights == std::vector<float>(kModeNumel, row.expected));
    }
  }
}

TEST_CASE("a 16-bit model resumes bitwise equal from its checkpoint, also with another sharding") {
  for (const DType load : {DType::bfloat16, DType::float16}) {
    for (const bool chance : {false, true}) {
      const acc::test::TemporaryFolder folder;
      const std::string path = (folder.path() / "checkpoint").string();
      const auto run = [&](Strategy strategy, int world, int steps) {
        Run each{.job = {.world_size = world, .sharding = in_precision(strategy)},
                 .load = load,
                 .gradient = 0.375F,
                 .steps = steps,
                 .adamw = acc::AdamW{.lr = 0.01},
                 .initializer = uneven()};
        each.job.sharding.stochastic_rounding = chance;
        return each;
      };
      const Outcome straight = train(run(Strategy::full_shard, 2, 5));
      Run first = run(Strategy::full_shard, 2, 3);
      first.then = [&](acc::Runtime& runtime, acc::Model& model, acc::Optimizer& optimizer) {
        runtime.save(path, model, optimizer);
      };
      train(first);
      for (const int world : {1, 2, 4}) {
        CAPTURE(world);
        Run second = run(world == 4 ? Strategy::shard_optimizer : Strategy::full_shard, world, 2);
        second.before = [&](acc::Runtime& runtime, acc::Model& model, acc::Optimizer& optimizer) {
          runtime.load(path, model, optimizer);
        };
        CHECK(train(second).weights == straight.weights);
      }
    }
  }
}

TEST_CASE("stochastic rounding keeps updates that nearest rounding loses, equally in all layouts") {
  constexpr int kSteps = 10;
  constexpr double kMove = 1e-4;  // a 39th of half a unit of bfloat16 at 1, a fifth of float16's
  for (const DType load : {DType::bfloat16, DType::float16}) {
    CAPTURE(std::string(to_string(load)));
    const auto run = [&](Strategy strategy, int world, bool chance) {
      Run each{.job = {.world_size = world, .sharding = in_precision(strategy)},
               .load = load,
               .steps = kSteps,
               .sgd = {.lr = kMove}};
      each.job.sharding.stochastic_rounding = chance;
      return train(each).weights;
    };
    CHECK(run(Strategy::no_shard, 1, false) == std::vector<float>(kModeNumel, 1.0F));
    const auto moved = run(Strategy::no_shard, 1, true);
    double sum = 0.0;
    double squares = 0.0;
    for (const float weight : moved) {
      sum += 1.0 - weight;
      squares += (1.0 - weight) * (1.0 - weight);
    }
    CHECK(std::abs(sum / kModeNumel - kSteps * kMove) <= 5.0 * std::sqrt(squares) / kModeNumel);
    for (const Strategy strategy : kModeStrategies) {
      for (const int world : {2, 4}) {
        CHECK(run(strategy, world, true) == moved);
      }
    }
  }
}
