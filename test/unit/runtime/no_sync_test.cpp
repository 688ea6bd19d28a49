// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/store.hpp"
#include "acc/runtime.hpp"
#include "support/module_net.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

// Accumulation over micro-steps: FSDP's no_sync, groups that are incomplete, gradients that are
// dropped, and backwards that come again.
namespace {

using acc::settings::MixedPrecision;
using acc::settings::ShardingSettings;
using acc::settings::Strategy;
using acc::test::distance;
using acc::test::Job;
using acc::test::ModuleNet;
using acc::test::UnitSpec;
using acc::test::Weights;

constexpr int kMicroSteps = 3;
constexpr int kUnitNumel = 24 * 24;  ///< of each unit

/// A root and two blocks of one size. In some micro-steps a block writes nothing.
const std::vector<UnitSpec> kNoSyncNet = {{"net", "Net", -1, {{"weight", kUnitNumel}}},
                                          {"net.a", "Block", 0, {{"weight", kUnitNumel}}},
                                          {"net.b", "Block", 0, {{"weight", kUnitNumel}}}};

void micro_step(ModuleNet& net, int rank, int number) {
  const float factor = 0.1F * static_cast<float>(1 + (rank * 7 + number * 3) % 5);
  net.micro_step(
      [&](const std::string&, int i, float weight) {
        return factor * (0.1F * weight + std::sin(static_cast<float>(i)));
      },
      number % 2 == 0 ? std::set<std::string>{} : std::set<std::string>{"net.b.weight"});
}

struct Seen {
  Weights weights;
  acc::TrafficReport quiet;   ///< during the micro-steps under no_sync
  acc::TrafficReport step;    ///< during the whole step, up to Optimizer::step
  acc::MemoryReport waiting;  ///< before the micro-step that reduces
  acc::MemoryReport after;    ///< after the step
};

/// quiet: number of micro-steps under no_sync, out of `made`. dropped: further micro-steps before
/// them, the first under no_sync if any is, whose gradients are dropped.
Seen train(const Job& job, int quiet, int made = kMicroSteps, int dropped = 0) {
  Seen seen;
  std::mutex mutex;
  acc::test::run_ranks(job, [&](const auto& settings, auto store) {
    auto runtime = acc::Runtime::from_settings(settings, std::move(store));
    auto model = runtime.model(5, {.unused_units = true});
    ModuleNet net(model, kNoSyncNet);
    auto optimizer = model.optimizer(acc::Sgd{.lr = 0.5});
    optimizer.set_clip_norm(2.0);
    Seen mine;
    for (int step = 0; step < 3; ++step) {
      for (int number = 0; number < dropped; ++number) {
        const auto guard = number == 0 && quiet > 0 ? model.no_sync() : nullptr;
        micro_step(net, runtime.rank(), 100 + number);
      }
      optimizer.zero_grad();
      model.reset_traffic();
      for (int number = 0; number < made; ++number) {
        const auto guard = number < quiet ? model.no_sync() : nullptr;
        micro_step(net, runtime.rank(), step * kMicroSteps + number);
        if (number + 1 == quiet) {
          mine.quiet = model.traffic();
          mine.waiting = model.memory();
        }
      }
      mine.step = model.traffic();
      optimizer.step();
    }
    mine.after = model.memory();
    mine.weights = net.read();
    runtime.barrier();
    const std::lock_guard lock(mutex);
    if (runtime.rank() == 0) {
      seen = std::move(mine);
    }
  });
  return seen;
}

Job no_sync_job(Strategy strategy, MixedPrecision precision = MixedPrecision::no) {
  Job job = acc::test::job_of(strategy, 4, 2);
  job.sharding.mixed_precision = precision;
  job.sharding.gradient_accumulation_steps = kMicroSteps;
  return job;
}

constexpr Strategy kStrategies[] = {Strategy::no_shard,      Strategy::shard_optimizer,
                                    Strategy::shard_grad_op, Strategy::full_shard,
                                    Strategy::hybrid_shard,  Strategy::hybrid_shard_zero2};

}  // namespace

TEST_CASE("no_sync gives the same weights as a reduction in each micro-step") {
  for (const MixedPrecision precision : {MixedPrecision::no, MixedPrecision::bf16}) {
    for (const Strategy strategy : kStrategies) {
      CAPTURE(to_string(strategy));
      CAPTURE(to_string(precision));
      const Job job = no_sync_job(strategy, precision);
      const Weights each = train(job, 0).weights;
      // In bf16 either each micro-step's gradient is rounded before it is sent, or their sum once.
      const double bound = precision == MixedPrecision::no ? 2e-6 : 0.02;
      for (const int quiet : {1, kMicroSteps - 1}) {
        CHECK(distance(each, train(job, quiet).weights) <= bound);
      }
      // A step reduces gradients that no micro-step has reduced.
      CHECK(distance(each, train(job, kMicroSteps).weights) <= bound);
    }
  }
}

TEST_CASE("a step divides by the micro-steps that were made") {
  for (const MixedPrecision precision : {MixedPrecision::no, MixedPrecision::bf16}) {
    for (const Strategy strategy : kStrategies) {
      CAPTURE(to_string(strategy));
      CAPTURE(to_string(precision));
      for (const int made : {1, 2}) {
        Job job = no_sync_job(strategy, precision);
        const Weights incomplete = train(job, 0, made).weights;
        const Weights quiet = train(job, made, made).weights;
        job.sharding.gradient_accumulation_steps = made;
        // Replicas round sums that were divided by another number.
        const double bound = precision == MixedPrecision::no ? 2e-6 : 0.02;
        CHECK(distance(incomplete, train(job, 0, made).weights) <= bound);
        CHECK(distance(quiet, incomplete) <= bound);
      }
    }
  }
}

TEST_CASE("dropped gradients leave nothing behind") {
  for (const MixedPrecision precision : {MixedPrecision::no, MixedPrecision::bf16}) {
    for (const Strategy strategy : kStrategies) {
      CAPTURE(to_string(strategy));
      CAPTURE(to_string(precision));
      const Job job = no_sync_job(strategy, precision);
      for (const int quiet : {0, 1}) {
        const Weights expected = train(job, quiet).weights;
        for (const int dropped : {1, kMicroSteps}) {
          CHECK(distance(expected, train(job, quiet, kMicroSteps, dropped).weights) == 0.0);
        }
      }
    }
  }
}

TEST_CASE("a forward may have several backwards under autograd, whose gradients are added") {
  const auto train_rounds = [](const Job& job, int rounds, bool recomputes) {
    Weights weights;
    std::mutex mutex;
    acc::test::run_ranks(job, [&](const auto& settings, auto store) {
      auto runtime = acc::Runtime::from_settings(settings, std::move(store));
      auto model = runtime.model(5, {.autograd = true});
      auto& root = model.root("net", "Net");
      auto& block = model.unit("net.block", "Block");
      const auto head = root.parameter("head", {40}, acc::normal(0.5F));
      const auto weight = block.parameter("weight", {70}, acc::normal(0.5F));
      auto optimizer = model.optimizer(acc::Sgd{.lr = 0.5, .momentum = 0.9});
      const auto write = [&](acc::BackwardUse& use, acc::Parameter parameter, int numel) {
        acc::test::write_gradient(use.grad(parameter), numel, [&](int i) {
          return static_cast<float>((i * 7 + runtime.rank()) % 5) / static_cast<float>(rounds);
        });
      };
      for (int step = 0; step < 2; ++step) {
        {
          auto whole = root.forward();
          const auto no_grad = recomputes ? model.no_grad() : nullptr;
          block.forward().end();
        }
        for (int round = 0; round < rounds; ++round) {
          auto whole = root.backward();
          if (recomputes) {
            block.recompute().end();
          }
          auto use = block.backward();
          write(use, weight, 70);
          use.end();
          write(whole, head, 40);
        }
        CHECK_THROWS_WITH((void)root.forward(), doctest::Contains("begins micro-step 2"));
        optimizer.step();
      }
      const auto no_grad = model.no_grad();
      Weights mine = {{"head", acc::test::values_of(root.forward(), head, 40)},
                      {"weight", acc::test::values_of(block.forward(), weight, 70)}};
      runtime.barrier();
      const std::lock_guard lock(mutex);
      weights = std::move(mine);
    });
    return weights;
  };
  for (const Strategy strategy : kStrategies) {
    CAPTURE(to_string(strategy));
    const Job job = acc::test::job_of(strategy, 4, 2);
    const Weights once = train_rounds(job, 1, false);
    for (const bool recomputes : {false, true}) {
      CHECK(distance(once, train_rounds(job, 2, recomputes)) <= 2e-6);
    }
  }
}

TEST_CASE("micro-steps under no_sync reduce nothing, and the next reduces once") {
  struct Expected {
    Strategy strategy;
    int quiet_gathers, gathers;  ///< calls: in two quiet micro-steps, in all three
    int reduces, all_reduces;    ///< calls before the step
  };
  // Three units. full_shard gathers all for forward and the blocks again for backward, each time;
  // shard_grad_op keeps them gathered until the reduction.
  for (const Expected& each :
       {Expected{Strategy::no_shard, 0, 0, 0, 3}, Expected{Strategy::shard_optimizer, 0, 0, 3, 0},
        Expected{Strategy::shard_grad_op, 3, 3, 3, 0}, Expected{Strategy::full_shard, 10, 15, 3, 0},
        Expected{Strategy::hybrid_shard, 10, 15, 3, 0},
        Expected{Strategy::hybrid_shard_zero2, 3, 3, 3, 0}}) {
    CAPTURE(to_string(each.strategy));
    const Seen seen = train(no_sync_job(each.strategy), kMicroSteps - 1);
    CHECK(seen.quiet.gather_calls == each.quiet_gathers);
    CHECK(seen.quiet.reduce_calls == 0);
    CHECK(seen.quiet.all_reduce_calls == 0);
    CHECK(seen.step.gather_calls == each.gathers);
    CHECK(seen.step.reduce_calls == each.reduces);
    CHECK(seen.step.all_reduce_calls == each.all_reduces);
    CHECK(seen.step.reduced_elements == each.reduces * kUnitNumel);
  }
}

TEST_CASE("gradients under no_sync are whole on each rank until they are reduced") {
  const int bytes = 3 * kUnitNumel * 4;
  for (const MixedPrecision precision : {MixedPrecision::no, MixedPrecision::bf16}) {
    CAPTURE(to_string(precision));
    const Seen sharded = train(no_sync_job(Strategy::full_shard, precision), kMicroSteps - 1);
    CHECK(sharded.waiting.gradient_bytes == bytes / 4 + bytes);
    CHECK(sharded.after.gradient_bytes == bytes / 4);
    const Seen whole = train(no_sync_job(Strategy::no_shard, precision), kMicroSteps - 1);
    CHECK(whole.waiting.gradient_bytes == bytes);
  }
}
