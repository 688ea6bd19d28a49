// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/rendezvous/store.hpp"
#include "acc/runtime.hpp"
#include "support/module_net.hpp"
#include "support/saved_step.hpp"
#include "support/temporary_folder.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

// Training with weights and gradients that other machines get in 8 or 7 bits.
namespace {

using acc::settings::MixedPrecision;
using acc::settings::ShardingSettings;
using acc::settings::Strategy;
using acc::test::distance;
using acc::test::Job;
using acc::test::ModuleNet;
using acc::test::UnitSpec;
using acc::test::Weights;

/// Several blocks for each of four ranks, and shards that no block divides.
const std::vector<UnitSpec> kNet = {
    {"net", "Net", -1, {{"embedding", 1'500}}},
    {"net.layer",
     "Layer",
     0,
     {{"weight", 5'000, {}, acc::normal(0.3F)}, {"fixed", 900, {.trainable = false}}}}};

/// The program has a quadratic loss on each rank, with another minimum; its gradient is `weight -
/// aim`.
float aim_of(int rank, int element) {
  return std::sin(static_cast<float>(element)) +
         0.5F * std::cos(static_cast<float>(element * (rank + 2)));
}

double loss_of(const Weights& weights, int ranks) {
  double sum = 0.0;
  for (const auto& [name, values] : weights) {
    for (std::size_t i = 0; name != "net.layer.fixed" && i < values.size(); ++i) {
      for (int rank = 0; rank < ranks; ++rank) {
        const double rest = values[i] - aim_of(rank, static_cast<int>(i));
        sum += rest * rest / ranks;
      }
    }
  }
  return sum;
}

struct Outcome {
  Weights weights;  ///< as programs see them
  acc::TrafficReport traffic;
  acc::StepInfo step;
};

struct Part {
  std::string from = {};  ///< checkpoint to resume from; empty: none
  std::int64_t until = 0;
  std::string to = {};
  int broken_step = -1;  ///< in this step one rank has an infinite gradient
  double lr = 0.05;
};

/// Returns what rank 0 has in the end; throws if ranks see other weights.
Outcome train(const Job& job, const Part& part) {
  Outcome result;
  std::mutex mutex;
  acc::test::run_ranks(job, [&](const auto& settings, auto store) {
    auto runtime = acc::Runtime::from_settings(settings, std::move(store));
    auto model = runtime.model(42);
    ModuleNet net(model, kNet);
    auto optimizer = model.optimizer(acc::Sgd{.lr = part.lr, .momentum = 0.9});
    optimizer.set_clip_norm(50.0);
    std::int64_t step =
        part.from.empty() ? 0 : acc::test::step_of(runtime.load(part.from, model, optimizer));
    Outcome mine;
    for (; step < part.until; ++step) {
      model.reset_traffic();
      do {
        net.micro_step([&](const std::string& name, int i, float weight) {
          const bool broken = step == part.broken_step && runtime.rank() == 1 && i == 700 &&
                              name == "net.layer.weight";
          return broken ? std::numeric_limits<float>::infinity()
                        : weight - aim_of(runtime.rank(), i);
        });
      } while (!runtime.last_micro_step(model));
      mine.step = optimizer.step();
      mine.traffic = model.traffic();
    }
    if (!part.to.empty()) {
      runtime.save(part.to, model, optimizer, acc::test::at_step(step));
    }
    mine.weights = net.read();
    runtime.barrier();
    const std::lock_guard lock(mutex);
    if (!result.weights.empty() && mine.weights != result.weights) {
      throw std::runtime_error("ranks see different weights");
    }
    if (result.weights.empty() || runtime.rank() == 0) {
      result = std::move(mine);
    }
  });
  return result;
}

struct Layout {
  const char* name;
  Strategy strategy;
  int ranks, machines;
  int shard_size = 0;
  int hpz = 1;
};

constexpr Layout kLayouts[] = {{"no_shard", Strategy::no_shard, 2, 2},
                               {"no_shard, 2 x 2", Strategy::no_shard, 4, 2},
                               {"no_shard, 3", Strategy::no_shard, 3, 3},
                               {"shard_optimizer", Strategy::shard_optimizer, 4, 2},
                               {"shard_grad_op", Strategy::shard_grad_op, 4, 2},
                               {"full_shard", Strategy::full_shard, 2, 2},
                               {"full_shard, 2 x 2", Strategy::full_shard, 4, 2},
                               {"full_shard, 3", Strategy::full_shard, 3, 3},
                               {"hpZ", Strategy::full_shard, 4, 2, 0, 2},
                               {"hybrid_shard", Strategy::hybrid_shard, 4, 2},
                               {"hybrid_shard over machines", Strategy::hybrid_shard, 4, 4, 2},
                               {"hybrid_shard_zero2", Strategy::hybrid_shard_zero2, 4, 2}};

Job job_of(const Layout& layout, bool quantized,
           const std::function<void(ShardingSettings&)>& set = {}) {
  Job job{.world_size = layout.ranks, .num_machines = layout.machines};
  job.sharding.strategy = layout.strategy;
  job.sharding.shard_size = layout.shard_size;
  job.sharding.hpz_partition_size = layout.hpz;
  if (set) {
    set(job.sharding);
  }
  const bool shards =
      layout.strategy != Strategy::no_shard && layout.strategy != Strategy::shard_optimizer;
  job.sharding.quantized_weights = quantized && shards;
  job.sharding.quantized_gradients = quantized;
  return job;
}

}  // namespace

TEST_CASE("quantised training: every strategy comes to the loss of exact training") {
  struct Mode {
    const char* name;
    std::function<void(ShardingSettings&)> set;
  };
  for (const Mode& mode :
       {Mode{"fp32", {}}, Mode{"bf16, two micro-steps, small buckets", [](auto& s) {
                                 s.mixed_precision = MixedPrecision::bf16;
                                 s.gradient_accumulation_steps = 2;
                                 s.reduce_bucket_size = 2'000;
                               }}}) {
    for (const Layout& layout : kLayouts) {
      CAPTURE(mode.name);
      CAPTURE(layout.name);
      const Outcome exact = train(job_of(layout, false, mode.set), {.until = 30});
      const Outcome quantized = train(job_of(layout, true, mode.set), {.until = 30});
      const double loss = loss_of(exact.weights, layout.ranks);
      CHECK(std::abs(loss_of(quantized.weights, layout.ranks) - loss) <= 0.005 * loss);
      CHECK(distance(exact.weights, quantized.weights) > 0.0);  // it had an effect
      if (!mode.set) {  // the same run again has the same bits
        CHECK(train(job_of(layout, true), {.until = 30}).weights == quantized.weights);
      }
    }
  }
}

TEST_CASE("quantised training: bytes between machines") {
  for (const Layout& layout : kLayouts) {
    CAPTURE(layout.name);
    const acc::TrafficReport exact = train(job_of(layout, false), {.until = 2}).traffic;
    const acc::TrafficReport quantized = train(job_of(layout, true), {.until = 2}).traffic;
    // Of float32: 260 of 1024 bytes for weights and all_reduces, 228 of 1024 for reduce_scatters;
    // the last block of a shard is not full.
    const auto times = [](std::int64_t a, std::int64_t b) {
      return static_cast<double>(a) / static_cast<double>(b);
    };
    CHECK(exact.reduced_bytes_sent > 0);
    const bool sums = layout.strategy == Strategy::no_shard ||
                      layout.strategy == Strategy::hybrid_shard ||
                      layout.strategy == Strategy::hybrid_shard_zero2;
    CHECK(times(exact.reduced_bytes_sent, quantized.reduced_bytes_sent) >= (sums ? 3.3 : 3.8));
    if (job_of(layout, true).sharding.quantized_weights && exact.gathered_bytes_sent > 0) {
      CHECK(times(exact.gathered_bytes_sent, quantized.gathered_bytes_sent) >= 3.3);
    } else {
      CHECK(quantized.gathered_bytes_sent == exact.gathered_bytes_sent);
    }
    CHECK(exact.gathered_elements == quantized.gathered_elements);
    CHECK(exact.reduced_elements == quantized.reduced_elements);
  }
}

TEST_CASE("quantised training: ranks of one machine compute as without it") {
  for (const Layout& layout : kLayouts) {
    if (layout.machines != 2) {
      continue;
    }
    CAPTURE(layout.name);
    Layout together = layout;
    together.machines = 1;
    together.shard_size = 2;
    const Outcome exact = train(job_of(together, false), {.until = 5});
    const Outcome quantized = train(job_of(together, true), {.until = 5});
    CHECK(exact.weights == quantized.weights);
    CHECK(quantized.traffic.gathered_bytes_sent + quantized.traffic.reduced_bytes_sent == 0);
  }
}

TEST_CASE("quantised training: every rank skips a step with an infinite gradient") {
  for (const Layout& layout : kLayouts) {
    CAPTURE(layout.name);
    const Job job =
        job_of(layout, true, [](auto& s) { s.nan_policy = acc::settings::NanPolicy::skip; });
    const Outcome broken = train(job, {.until = 3, .broken_step = 2});
    CHECK(broken.step.skipped);
    CHECK_FALSE(std::isfinite(broken.step.grad_norm));
    CHECK(broken.weights == train(job, {.until = 2}).weights);
    const Job fp16 = job_of(layout, true, [](auto& s) {
      s.mixed_precision = MixedPrecision::fp16;
      s.loss_scaling.initial_scale_power = 4;
    });
    const Outcome scaled = train(fp16, {.until = 3, .broken_step = 2});
    CHECK(scaled.step.skipped);
  }
}

TEST_CASE("quantised training: masters and checkpoints are exact") {
  // Steps that are far smaller than one of the 255 values of a weight in 8 bits add up.
  for (const Layout& layout : kLayouts) {
    CAPTURE(layout.name);
    const double lr = 1e-5;
    const acc::test::TemporaryFolder folder;
    const std::string saved = (folder.path() / "saved").string();
    const Outcome exact = train(job_of(layout, false), {.until = 20, .lr = lr});
    Job job = job_of(layout, true);
    job.sharding.quantized_gradients = false;
    train(job, {.until = 20, .to = saved, .lr = lr});
    // The checkpoint, read without quantisation. A step in 8 bits is about 4e-3.
    const Outcome masters = train(job_of(layout, false), {.from = saved, .until = 20, .lr = lr});
    CHECK(distance(masters.weights, exact.weights) < 2e-5);
    job.sharding.quantized_gradients = true;
    const Outcome whole = train(job, {.until = 6});
    train(job, {.until = 3, .to = saved + "2"});
    CHECK(train(job, {.from = saved + "2", .until = 6}).weights == whole.weights);
  }
}

namespace {

struct RandomNet {
  std::vector<UnitSpec> units;
  std::set<std::string> zero;  ///< full names of parameters whose gradient is 0
};

/// Up to three units of parameters of one to four thousand elements, of which some are frozen.
RandomNet random_net(std::mt19937& random) {
  const auto up_to = [&](int most) { return static_cast<int>(random() % unsigned(most)) + 1; };
  RandomNet net;
  for (int unit = up_to(3); unit > 0; --unit) {
    const int number = static_cast<int>(net.units.size());
    UnitSpec spec{fmt::format("unit{}", number), "Unit", number - 1, {}};
    for (int i = up_to(4); i > 0; --i) {
      const std::string name = fmt::format("parameter{}", i);
      spec.parameters.push_back({name, up_to(up_to(3) == 1 ? 5 : 4'000)});
      spec.parameters.back().options.trainable = i == 1 || up_to(4) > 1;
      if (i > 1 && up_to(4) == 1) {
        net.zero.insert(spec.name + "." + name);
      }
    }
    net.units.push_back(std::move(spec));
  }
  return net;
}

/// Weights after a step of SGD, whose rate is 1, over micro-steps of which some reduce nothing.
Weights one_step(const Job& job, const RandomNet& random_net, unsigned seed) {
  std::mutex mutex;
  Weights result;
  acc::test::run_ranks(job, [&](const auto& settings, auto store) {
    auto runtime = acc::Runtime::from_settings(settings, std::move(store));
    auto model = runtime.model(seed);
    ModuleNet net(model, random_net.units);
    auto optimizer = model.optimizer(acc::Sgd{.lr = 1.0});
    int micro_step = 0;
    const auto gradient = [&](const std::string& name, int i, float) {
      const int number = i * 7 + runtime.rank() * 31 + micro_step * 3;
      return random_net.zero.contains(name) ? 0.0F : std::sin(static_cast<float>(number));
    };
    for (; micro_step < job.sharding.gradient_accumulation_steps - 1; ++micro_step) {
      std::shared_ptr<void> guard;
      if ((seed + static_cast<unsigned>(micro_step)) % 2 == 0) {
        guard = model.no_sync();
      }
      net.micro_step(gradient);
    }
    net.micro_step(gradient);
    optimizer.step();
    const Weights mine = net.read();
    runtime.barrier();
    const std::lock_guard lock(mutex);
    if (!result.empty() && mine != result) {
      throw std::runtime_error("ranks see different weights");
    }
    result = mine;
  });
  return result;
}

}  // namespace

TEST_CASE("quantised training: any sizes on machines of any sizes, within the error of the code") {
  constexpr Strategy kStrategies[] = {Strategy::no_shard, Strategy::shard_optimizer,
                                      Strategy::shard_grad_op, Strategy::full_shard};
  for (unsigned seed = 0; seed < 24; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const RandomNet net = random_net(random);
    Job job;
    job.num_machines = 2 + static_cast<int>(random() % 2);
    for (int machine = 0; machine < job.num_machines; ++machine) {
      job.machine_sizes.push_back(1 + static_cast<int>(random() % 3));
    }
    job.world_size = std::accumulate(job.machine_sizes.begin(), job.machine_sizes.end(), 0);
    job.sharding.strategy = kStrategies[seed % 4];
    job.sharding.mixed_precision =
        std::array{MixedPrecision::no, MixedPrecision::bf16, MixedPrecision::fp16}[random() % 3];
    job.sharding.loss_scaling.static_scale = 64.0;
    job.sharding.gradient_accumulation_steps = 1 + static_cast<int>(random() % 3);
    CAPTURE(job.world_size);
    CAPTURE(to_string(job.sharding.mixed_precision));
    const Weights exact = one_step(job, net, seed);
    job.sharding.quantized_gradients = true;
    const bool shards = seed % 4 >= 2;
    job.sharding.quantized_weights = shards;
    const Weights quantized = one_step(job, net, seed);
    double errors = 0.0;
    double squares = 0.0;
    for (const UnitSpec& unit : net.units) {
      for (const auto& parameter : unit.parameters) {
        const std::string name = unit.name + "." + parameter.name;
        CAPTURE(name);
        if (!parameter.options.trainable) {
          const float largest = std::abs(
              std::ranges::max(exact.at(name), {}, [](float value) { return std::abs(value); }));
          CHECK(distance({{name, exact.at(name)}}, {{name, quantized.at(name)}}) <=
                (shards ? 0.01 * largest : 0.0));
          continue;
        }
        for (std::size_t i = 0; i < exact.at(name).size(); ++i) {
          errors += std::pow(quantized.at(name)[i] - exact.at(name)[i], 2.0);
          squares += std::pow(exact.at(name)[i], 2.0);
        }
      }
    }
    CHECK(std::sqrt(errors) <= 0.1 * std::sqrt(squares));
  }
}

TEST_CASE("quantised weights are refused by name where no weights are sharded") {
  for (const Strategy strategy : {Strategy::no_shard, Strategy::shard_optimizer}) {
    Job job{.world_size = 2, .num_machines = 2};
    job.sharding.strategy = strategy;
    job.sharding.quantized_weights = true;
    CHECK_THROWS_WITH(train(job, {}), doctest::Contains("quantized_weights needs a strategy"));
  }
}
