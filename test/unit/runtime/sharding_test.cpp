// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/store.hpp"
#include "acc/runtime.hpp"
#include "support/run_ranks.hpp"
#include "support/temporary_folder.hpp"
#include "support/weights.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <filesystem>
#include <map>
#include <mutex>

namespace {

using acc::settings::MixedPrecision;
using acc::settings::ShardingSettings;
using acc::settings::Strategy;
using acc::test::distance;
using acc::test::Job;
using acc::test::Weights;

struct Case {
  const char* name;
  ShardingSettings sharding;
  bool copy_gathers = false;
};

ShardingSettings with(Strategy strategy, int shard_size = 0, int hpz = 1) {
  ShardingSettings settings;
  settings.strategy = strategy;
  settings.shard_size = shard_size;
  settings.hpz_partition_size = hpz;
  return settings;
}

/// A model with unusual properties: sizes that no number of ranks divides, a unit that is used
/// twice, a unit that is wholly frozen, a frozen and a tied parameter, a parameter without a
/// gradient.
struct Oddities {
  explicit Oddities(acc::Model& model)
      : root(model.root("net", "Net")),
        twice(model.unit("net.twice", "Layer")),
        frozen(model.unit("net.frozen", "Layer")),
        tail(model.unit("net.tail", "Tail")) {
    embedding = root.parameter("embedding", {13, 3}, acc::normal(0.5F));
    root.tie("net.head", embedding);
    bias = root.parameter("bias", {5}, acc::zeros(), {.weight_decay = false});
    weight = twice.parameter("weight", {7, 11}, acc::normal(0.3F));
    fixed = twice.parameter("fixed", {3}, acc::ones(), {.trainable = false});
    all_frozen = frozen.parameter("weight", {29}, acc::uniform(-1.0F, 1.0F), {.trainable = false});
    last = tail.parameter("weight", {1}, acc::constant(2.0F));
    unused = tail.parameter("unused", {17}, acc::ones());
  }

  /// An artificial gradient that depends on the weights, the rank, the step and the element.
  static void push(acc::Gradient to, const float* weights, int numel, float factor) {
    acc::test::write_gradient(to, numel, [&](int i) {
      return factor * (0.1F * weights[i] + std::sin(static_cast<float>(i)));
    });
  }

  void micro_step(int rank, int step) {
    const float factor = 0.01F * static_cast<float>(1 + (rank * 7 + step * 3) % 5);
    float sum = 0.0F;
    {
      auto whole = root.forward();
      for (int round = 0; round < 2; ++round) {
        auto use = twice.forward();
        sum += use[weight][76] + use[fixed][2] + whole[embedding][38];
      }
      auto use = frozen.forward();
      sum += use[all_frozen][28];
      auto end = tail.forward();
      sum += end[last][0];
    }
    auto whole = root.backward();
    {
      auto use = tail.backward();
      push(use.grad(last), use[last], 1, factor * (1.0F + 0.01F * sum));
    }
    {
      auto use = frozen.backward();
      sum += use[all_frozen][0];
      if (use.grad(all_frozen).data != nullptr) {
        throw std::runtime_error("a frozen parameter has a gradient");
      }
    }
    for (int round = 0; round < 2; ++round) {
      auto use = twice.backward();
      push(use.grad(weight), use[weight], 77, factor * use[fixed][0]);
    }
    push(whole.grad(embedding), whole[embedding], 39, factor);
    float* const more = whole.grad_to_add(embedding);
    more[38] += factor;
    float* const add = whole.grad_to_add(bias);
    add[4] += factor * sum;
  }

  acc::Unit& root;
  acc::Unit& twice;
  acc::Unit& frozen;
  acc::Unit& tail;
  acc::Parameter embedding, bias, weight, fixed, all_frozen, last, unused;
};

Weights read_all(acc::Model& model, Oddities& net) {
  const auto guard = model.no_grad();
  Weights all;
  const auto copy = [&](const auto& use, const char* name, acc::Parameter p, int numel) {
    all[name] = acc::test::values_of(use, p, numel);
  };
  const auto root = net.root.forward();
  copy(root, "embedding", net.embedding, 39);
  copy(root, "bias", net.bias, 5);
  const auto twice = net.twice.forward();
  copy(twice, "weight", net.weight, 77);
  copy(twice, "fixed", net.fixed, 3);
  const auto frozen = net.frozen.forward();
  copy(frozen, "frozen", net.all_frozen, 29);
  const auto tail = net.tail.forward();
  copy(tail, "last", net.last, 1);
  copy(tail, "unused", net.unused, 17);
  return all;
}

/// Returns the weights after `steps` steps; checks that every rank sees the same.
Weights train(Job job, int steps, bool sgd = false) {
  Weights result;
  std::mutex mutex;
  acc::test::run_ranks(job, [&](const auto& settings, auto store) {
    auto runtime = acc::Runtime::from_settings(settings, std::move(store));
    auto model = runtime.model(42);
    Oddities net(model);
    auto optimizer = sgd ? model.optimizer(acc::Sgd{.lr = 0.1, .momentum = 0.9})
                         : model.optimizer(acc::AdamW{.lr = 0.05, .weight_decay = 0.1});
    optimizer.set_clip_norm(0.5);
    for (int step = 0; step < steps; ++step) {
      do {
        net.micro_step(settings.identity.rank, step);
      } while (!runtime.last_micro_step(model));
      optimizer.step();
    }
    Weights mine = read_all(model, net);
    runtime.barrier();
    const std::lock_guard lock(mutex);
    if (!result.empty() && mine != result) {
      throw std::runtime_error("ranks disagree about the weights");
    }
    result = std::move(mine);
  });
  return result;
}

/// DeepSpeed's limits, small enough to have an effect on this model.
ShardingSettings counted(Strategy strategy) {
  ShardingSettings settings = with(strategy);
  settings.prefetch_bucket_size = 60;
  settings.max_live_parameters = 130;
  settings.max_reuse_distance = 50;
  settings.param_persistence_threshold = 20;
  settings.allgather_bucket_size = 40;
  settings.overlap_comm = false;
  return settings;
}

ShardingSettings resharding(Strategy strategy, int reshard_size, int shard_size = 0) {
  ShardingSettings settings = with(strategy, shard_size);
  settings.reshard_size = reshard_size;
  return settings;
}

std::vector<Case> cases(int world) {
  std::vector<Case> all = {{"no_shard", with(Strategy::no_shard)},
                           {"shard_optimizer", with(Strategy::shard_optimizer)},
                           {"shard_grad_op", with(Strategy::shard_grad_op)},
                           {"full_shard", with(Strategy::full_shard)},
                           {"full_shard copying", with(Strategy::full_shard), true},
                           {"shard_grad_op copying", with(Strategy::shard_grad_op), true},
                           {"full_shard counted", counted(Strategy::full_shard), true},
                           {"shard_optimizer counted", counted(Strategy::shard_optimizer), true}};
  if (world % 2 == 0) {
    all.push_back({"hybrid_shard", with(Strategy::hybrid_shard, 2)});
    all.push_back({"hybrid_shard_zero2", with(Strategy::hybrid_shard_zero2, 2)});
    all.push_back({"hpz", with(Strategy::full_shard, 0, 2)});
    all.push_back({"hpz copying", with(Strategy::full_shard, 0, 2), true});
    all.push_back({"resharding to 2", resharding(Strategy::full_shard, 2)});
    all.push_back({"resharding to 2 copying", resharding(Strategy::full_shard, 2), true});
  }
  if (world == 4) {
    all.push_back({"hybrid resharding", resharding(Strategy::hybrid_shard, 2, 4), true});
  }
  return all;
}

}  // namespace

TEST_CASE("every strategy gives the weights of no_shard") {
  for (const int world : {1, 2, 3, 4}) {
    for (const int micro_steps : {1, 3}) {
      Job plain{.world_size = world, .sharding = with(Strategy::no_shard)};
      plain.sharding.gradient_accumulation_steps = micro_steps;
      const Weights reference = train(plain, 4);
      for (const int machines : {1, 2}) {
        if (world % machines != 0) {
          continue;
        }
        for (Case each : cases(world)) {
          CAPTURE(world);
          CAPTURE(machines);
          CAPTURE(micro_steps);
          CAPTURE(each.name);
          each.sharding.gradient_accumulation_steps = micro_steps;
          each.sharding.backward_prefetch = acc::settings::BackwardPrefetch::backward_pre;
          each.sharding.forward_prefetch = micro_steps > 1;
          const Job job{.world_size = world,
                        .num_machines = machines,
                        .sharding = each.sharding,
                        .copy_gathers = each.copy_gathers};
          // One host, one micro-step, no replicas: sums run in the same order and are bitwise
          // equal.
          const bool same_order =
              machines == 1 && micro_steps == 1 && each.sharding.shard_size == 0;
          const double bound = same_order ? 0.0 : 2e-6;
          CHECK(distance(reference, train(job, 4)) <= bound);
        }
      }
    }
  }
}

TEST_CASE("sgd with momentum, sharded and not") {
  const Weights reference = train({.world_size = 2, .sharding = with(Strategy::no_shard)}, 3, true);
  CHECK(distance(reference,
                 train({.world_size = 2, .sharding = with(Strategy::full_shard)}, 3, true)) == 0.0);
}

TEST_CASE("bf16 weights are rounded, masters are not") {
  for (const int machines : {1, 2}) {
    std::optional<Weights> first;
    for (Case each : cases(4)) {
      CAPTURE(machines);
      CAPTURE(each.name);
      each.sharding.mixed_precision = MixedPrecision::bf16;
      const Weights seen = train({.world_size = 4,
                                  .num_machines = machines,
                                  .sharding = each.sharding,
                                  .copy_gathers = each.copy_gathers},
                                 4);
      for (const auto& [name, values] : seen) {
        const auto is_rounded = [](float value) {
          return (std::bit_cast<std::uint32_t>(value) & 0xffffU) == 0;
        };
        CHECK(std::all_of(values.begin(), values.end(), is_rounded));
      }
      first = first.value_or(seen);
      CHECK(distance(*first, seen) < 0.02);
    }
  }
}

TEST_CASE("wrap policies: one unit, by size, by class, and an unknown class") {
  const Weights reference = train({.world_size = 2, .sharding = with(Strategy::no_shard)}, 3);
  for (const auto policy :
       {acc::settings::WrapPolicy::no_wrap, acc::settings::WrapPolicy::size_based,
        acc::settings::WrapPolicy::transformer_based}) {
    Job job{.world_size = 2, .sharding = with(Strategy::full_shard)};
    job.sharding.wrap_policy = policy;
    job.sharding.min_num_params = 29;
    job.sharding.transformer_layer_classes = {"Tail"};
    CHECK(distance(reference, train(job, 3)) == 0.0);
  }
  Job job{.world_size = 1, .sharding = with(Strategy::full_shard)};
  job.sharding.wrap_policy = acc::settings::WrapPolicy::transformer_based;
  job.sharding.transformer_layer_classes = {"BertLayer"};
  CHECK_THROWS_WITH_AS(train(job, 1), doctest::Contains("the model has Layer, Net, Tail"),
                       acc::Error);
}

TEST_CASE("bytes held equal the formula") {
  struct Expected {
    Strategy strategy;
    int parameters, gradients, optimizer;  ///< divisors of 4P, 4P, 8P on 4 ranks, groups of 2
  };
  for (const Expected& each :
       {Expected{Strategy::no_shard, 1, 1, 1}, Expected{Strategy::shard_optimizer, 1, 1, 4},
        Expected{Strategy::shard_grad_op, 4, 4, 4}, Expected{Strategy::full_shard, 4, 4, 4},
        Expected{Strategy::hybrid_shard, 2, 2, 2},
        Expected{Strategy::hybrid_shard_zero2, 2, 2, 2}}) {
    for (const bool copying : {false, true}) {
      CAPTURE(to_string(each.strategy));
      std::mutex mutex;
      acc::MemoryReport memory;
      const Job job{.world_size = 4, .sharding = with(each.strategy, 2), .copy_gathers = copying};
      acc::test::run_ranks(job, [&](const auto& settings, auto store) {
        auto runtime = acc::Runtime::from_settings(settings, std::move(store));
        auto model = runtime.model();
        auto& unit = model.unit("only", "Only");
        const auto weight = unit.parameter("weight", {64, 64}, acc::normal(1.0F));
        auto optimizer = model.optimizer(acc::AdamW{});
        { auto use = unit.forward(); }
        {
          auto use = unit.backward();
          use.grad_to_add(weight)[0] = 1.0F;
        }
        optimizer.step();
        runtime.barrier();
        const std::lock_guard lock(mutex);
        memory = model.memory();
      });
      const int bytes = 4 * 64 * 64;
      CHECK(memory.parameter_bytes == bytes / each.parameters);
      CHECK(memory.gradient_bytes == bytes / each.gradients);
      CHECK(memory.optimizer_bytes == 2 * bytes / each.optimizer);
      const bool gathers = copying && each.parameters > 1;
      CHECK(memory.gathered_bytes == (gathers ? bytes : 0));
    }
  }
}

TEST_CASE("misuse is an error that names the unit") {
  auto runtime = acc::Runtime::from_settings({}, nullptr);
  auto model = runtime.model();
  auto& unit = model.unit("layer", "Layer");
  unit.parameter("weight", {2}, acc::zeros());
  CHECK_THROWS_WITH(model.unit("layer", "Layer"), doctest::Contains("'layer' declared twice"));
  CHECK_THROWS_WITH(unit.parameter("empty", {0}, acc::zeros()), doctest::Contains("layer.empty"));
  auto optimizer = model.optimizer(acc::AdamW{});
  CHECK_THROWS_WITH(unit.parameter("late", {2}, acc::zeros()), doctest::Contains("too late"));
  CHECK_THROWS_WITH((void)unit.backward(), doctest::Contains("only 0 forward"));
  auto use = unit.forward();
  CHECK_THROWS_WITH(optimizer.step(), doctest::Contains("inside an open scope"));
}

TEST_CASE("a refused scope opens none of its sharded units") {
  auto runtime = acc::Runtime::from_settings({}, nullptr);
  auto model = runtime.model(0, {.unused_units = true});
  auto& outer = model.unit("outer", "Outer");
  outer.parameter("weight", {2}, acc::zeros());
  outer.parameter("inner.bias", {2}, acc::zeros());
  auto& inner = model.unit("outer.inner", "Inner");
  inner.parameter("weight", {2}, acc::zeros());
  auto optimizer = model.optimizer(acc::AdamW{});
  { auto use = inner.forward(); }
  { auto use = inner.backward(); }
  CHECK_THROWS_WITH((void)outer.forward(), doctest::Contains("'outer.inner' begins micro-step 2"));
  CHECK_NOTHROW(optimizer.step());
  { auto use = outer.forward(); }
  { auto use = inner.backward(); }
  CHECK_THROWS_WITH((void)outer.backward(), doctest::Contains("only 0 forward"));
  CHECK_NOTHROW(optimizer.step());
}

TEST_CASE("a model whose initialization failed cannot be used") {
  auto runtime = acc::Runtime::from_settings({}, nullptr);
  auto model = runtime.model();
  auto& unit = model.unit("layer", "Layer");
  const auto fails = [](std::uint64_t, std::int64_t, std::span<float>) {
    throw std::runtime_error("no values");
  };
  unit.parameter("weight", {2}, acc::Initializer(fails));
  CHECK_THROWS_WITH((void)unit.forward(), "no values");
  CHECK_THROWS_WITH((void)unit.forward(), doctest::Contains("cannot be used"));
}

TEST_CASE("loaded weights are used even if the unit is gathered already") {
  const acc::test::TemporaryFolder folder;
  const std::string path = folder.path() / "weights.safetensors";
  for (const Strategy strategy :
       {Strategy::shard_optimizer, Strategy::shard_grad_op, Strategy::full_shard}) {
    for (const MixedPrecision precision : {MixedPrecision::no, MixedPrecision::bf16}) {
      CAPTURE(to_string(strategy));
      CAPTURE(to_string(precision));
      Job job{.world_size = 2, .sharding = with(strategy), .copy_gathers = true};
      job.sharding.mixed_precision = precision;
      acc::test::run_ranks(job, [&](const auto& settings, auto store) {
        auto runtime = acc::Runtime::from_settings(settings, std::move(store));
        const auto value_of = [&](float initial, bool loads) {
          auto model = runtime.model();
          auto& root = model.root("net", "Net");
          const auto weight = root.parameter("weight", {40}, acc::constant(initial));
          { auto use = root.forward(); }  // without a backward: the root stays gathered
          loads ? model.load_weights(path) : model.export_weights(path);
          const auto guard = model.no_grad();
          return root.forward()[weight][39];
        };
        CHECK(value_of(1.0F, false) == 1.0F);
        CHECK(value_of(2.0F, true) == 1.0F);
        runtime.barrier();
      });
    }
  }
  auto runtime = acc::Runtime::from_settings({}, nullptr);
  auto model = runtime.model();
  auto& root = model.root("net", "Net");
  root.parameter("weight", {40}, acc::zeros());
  auto use = root.forward();
  CHECK_THROWS_WITH(model.load_weights(path),
                    doctest::Contains("loading weights inside an open scope of unit 'net'"));
}

TEST_CASE("one micro-step too many is refused, in every strategy") {
  for (const Strategy strategy :
       {Strategy::no_shard, Strategy::shard_optimizer, Strategy::full_shard}) {
    acc::settings::RuntimeSettings settings;
    settings.sharding.strategy = strategy;
    auto runtime = acc::Runtime::from_settings(settings, nullptr);
    auto model = runtime.model(0, {.unused_units = true});
    auto& unit = model.unit("layer", "Layer");
    unit.parameter("weight", {2}, acc::zeros());
    auto optimizer = model.optimizer(acc::AdamW{});
    for (int step = 0; step < 2; ++step) {
      { auto use = unit.forward(); }
      { auto use = unit.backward(); }
      CHECK_THROWS_WITH((void)unit.forward(), doctest::Contains("begins micro-step 2"));
      optimizer.step();
    }
  }
}

TEST_CASE("a rank whose program fails inside a scope ends the others, which name it") {
  for (const int machines : {1, 2}) {
    CAPTURE(machines);
    std::atomic<int> told = 0;
    const Job job{
        .world_size = 4, .num_machines = machines, .sharding = with(Strategy::full_shard)};
    CHECK_THROWS(acc::test::run_ranks(job, [&](const auto& settings, auto store) {
      auto runtime = acc::Runtime::from_settings(settings, std::move(store));
      auto model = runtime.model();
      Oddities net(model);
      auto optimizer = model.optimizer(acc::AdamW{});
      const int rank = settings.identity.rank;
      try {
        for (int step = 0; step < 3; ++step) {
          net.micro_step(rank, step);
          {
            const auto evaluation = model.no_grad();
            auto use = net.tail.forward();
            if (rank == 2 && step == 1) {
              throw std::runtime_error("out of data");
            }
          }
          optimizer.step();
        }
      } catch (const acc::Error& error) {
        told += rank != 2 && std::string(error.what()).find("rank 2") != std::string::npos;
        throw;
      }
    }));
    CHECK(told == 3);
  }
}

TEST_CASE("unsupported settings are errors that name the setting") {
  struct Refused {
    std::function<void(acc::settings::RuntimeSettings&)> ask;
    const char* name;
  };
  for (const Refused& each : std::initializer_list<Refused>{
           {[](auto& s) { s.device = acc::settings::Device::cuda; }, "cuda"},
           {[](auto& s) {
              s.device = acc::settings::Device::cuda;
              s.sharding.offload_param = acc::settings::OffloadDevice::nvme;
            },
            "offload of parameters to nvme on a GPU"},
           {[](auto& s) {
              s.device = acc::settings::Device::cuda;
              s.sharding.offload_optimizer = acc::settings::OffloadDevice::nvme;
            },
            "offload of the optimizer to nvme on a GPU"},
           {[](auto& s) { s.sharding.unsupported = "zero_optimization.reduce_scatter false"; },
            "zero_optimization.reduce_scatter false (of the DeepSpeed file)"}}) {
    acc::settings::RuntimeSettings settings;
    each.ask(settings);
    CHECK_THROWS_WITH(acc::Runtime::from_settings(settings, nullptr), doctest::Contains(each.name));
  }
  acc::settings::RuntimeSettings settings;
  settings.identity.world_size = 4;
  settings.sharding = with(Strategy::hybrid_shard, 3);
  CHECK_THROWS_WITH(acc::Runtime::from_settings(settings, nullptr), doctest::Contains("3"));
}

TEST_CASE("fp8 is refused unless the program computes in it") {
  acc::settings::RuntimeSettings settings;
  settings.sharding.mixed_precision = MixedPrecision::fp8;
  auto runtime = acc::Runtime::from_settings(settings, nullptr);
  CHECK_THROWS_WITH_AS(runtime.model(),
                       "mixed_precision fp8: this program does not compute in fp8 on cpu "
                       "(ModelOptions::fp8); use bf16",
                       acc::Error);
  CHECK_NOTHROW(runtime.model(0, {.fp8 = true}));
}
