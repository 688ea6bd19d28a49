// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/store.hpp"
#include "acc/runtime.hpp"
#include "support/module_net.hpp"
#include "support/saved_step.hpp"
#include "support/temporary_folder.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

// Checkpoints from which another number of ranks resumes.
namespace {

using acc::settings::ShardingSettings;
using acc::settings::Strategy;
using acc::test::distance;
using acc::test::GradientRule;
using acc::test::Job;
using acc::test::ModuleNet;
using acc::test::UnitSpec;
using acc::test::Weights;

/// Sizes that no number of ranks divides, a frozen and a tied parameter.
const std::vector<UnitSpec> kNet = {
    {"net", "Net", -1, {{"embedding", 39}}},
    {"net.layer",
     "Layer",
     0,
     {{"weight", 77, {}, acc::normal(0.3F)},
      {"fixed", 3, {.trainable = false}, acc::uniform(0.5F, 1.5F)}}}};

/// Depends only on weights and step, so any number of ranks should make the same steps.
GradientRule gradient_of(std::int64_t step) {
  return [step](const std::string& name, int i, float weight) {
    return (name == "net.embedding" ? 0.1F : 1.0F) *
           (weight + std::sin(static_cast<float>(i + 5 * step)));
  };
}

struct Part {
  std::string from = {};  ///< checkpoint to resume from; empty: none
  int until = 0;          ///< last step
  std::string to = {};
};

/// Runs steps up to `part.until` and returns the weights that rank 0 sees.
Weights train(const Job& job, const Part& part) {
  Weights result;
  acc::test::run_ranks(job, [&](const auto& settings, auto store) {
    auto runtime = acc::Runtime::from_settings(settings, std::move(store));
    // Another seed than the first run's, so that a value that is not loaded is noticed.
    auto model = runtime.model(part.from.empty() ? 1 : 2);
    ModuleNet net(model, kNet);
    net.unit(0).tie("net.head", net.parameter(0, 0));
    auto optimizer = model.optimizer(acc::AdamW{.lr = 0.05, .weight_decay = 0.1});
    optimizer.set_clip_norm(0.5);
    std::int64_t step =
        part.from.empty() ? 0 : acc::test::step_of(runtime.load(part.from, model, optimizer));
    for (; step < part.until; ++step) {
      net.micro_step(gradient_of(step));
      CHECK_MESSAGE(optimizer.step().step == step + 1, "bias correction goes by the step");
    }
    if (!part.to.empty()) {
      runtime.save(part.to, model, optimizer, acc::test::at_step(step));
    }
    Weights mine = net.read();
    runtime.barrier();
    if (runtime.rank() == 0) {
      result = std::move(mine);
    }
  });
  return result;
}

ShardingSettings settings_with(Strategy strategy, int shard_size = 0) {
  ShardingSettings settings;
  settings.strategy = strategy;
  settings.shard_size = shard_size;
  return settings;
}

std::vector<Job> jobs(int ranks) {
  std::vector<Job> all;
  for (const Strategy strategy :
       {Strategy::full_shard, Strategy::shard_grad_op, Strategy::shard_optimizer}) {
    all.push_back({.world_size = ranks, .sharding = settings_with(strategy)});
  }
  if (ranks % 2 == 0) {
    all.push_back({.world_size = ranks,
                   .num_machines = ranks / 2,
                   .sharding = settings_with(Strategy::hybrid_shard, 2)});
  }
  return all;
}

/// Makes three steps with the layout `first`; each of `others` resumes and makes three more.
void check_resumed(const Weights& unbroken, const Job& first, const std::vector<Job>& others,
                   double bound) {
  const acc::test::TemporaryFolder folder;
  const std::string checkpoint = (folder.path() / "checkpoint").string();
  train(first, {.until = 3, .to = checkpoint});
  for (const Job& other : others) {
    CAPTURE(first.world_size);
    CAPTURE(to_string(first.sharding.strategy));
    CAPTURE(other.world_size);
    CAPTURE(to_string(other.sharding.strategy));
    CHECK(distance(unbroken, train(other, {.from = checkpoint, .until = 6})) <= bound);
  }
}

}  // namespace

TEST_CASE("any number of ranks resumes from the checkpoint of any other number") {
  const Weights unbroken = train({.sharding = settings_with(Strategy::no_shard)}, {.until = 6});
  std::vector<Job> all;
  for (const int ranks : {1, 2, 3, 4}) {
    const std::vector<Job> some = jobs(ranks);
    all.insert(all.end(), some.begin(), some.end());
  }
  for (const Job& first : all) {
    check_resumed(unbroken, first, all, 2e-6);
  }
}

TEST_CASE("the master weights of a bf16 run are restored") {
  const auto job = [](int ranks, int machines) {
    Job result{.world_size = ranks,
               .num_machines = machines,
               .sharding = settings_with(Strategy::full_shard)};
    result.sharding.mixed_precision = acc::settings::MixedPrecision::bf16;
    return result;
  };
  const Weights unbroken = train(job(1, 1), {.until = 6});
  for (const Job& first : {job(3, 3), job(4, 2)}) {
    check_resumed(unbroken, first, {job(1, 1), job(2, 2), job(3, 1), job(4, 1)},
                  0.0);  // their bits
  }
}
