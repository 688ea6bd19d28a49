// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "sharding/groups.hpp"
#include "sharding/persistence.hpp"

#include <doctest/doctest.h>

#include <vector>

namespace {

using acc::settings::RuntimeSettings;
using acc::settings::Strategy;
using Ranks = std::vector<int>;

/// Settings of rank `rank` of 8 on two machines.
RuntimeSettings of_eight(int rank, Strategy strategy) {
  RuntimeSettings settings;
  settings.identity = {.rank = rank,
                       .local_rank = rank % 4,
                       .world_size = 8,
                       .local_world_size = 4,
                       .node_rank = rank / 4,
                       .num_nodes = 2,
                       .master_addr = ""};
  settings.sharding.strategy = strategy;
  return settings;
}

}  // namespace

TEST_CASE("shard, replicate and secondary groups of rank 5 of 8 on two machines") {
  struct Case {
    const char* name;
    Strategy strategy;
    int shard_size, hpz, reshard;
    Ranks shard, replicate, secondary;
  };
  const Ranks all = {0, 1, 2, 3, 4, 5, 6, 7};
  for (const Case& each : {
           Case{"no_shard", Strategy::no_shard, 0, 1, 0, {5}, all, {}},
           Case{"full_shard", Strategy::full_shard, 0, 1, 0, all, {5}, {}},
           Case{"hybrid", Strategy::hybrid_shard, 0, 1, 0, {4, 5, 6, 7}, {1, 5}, {}},
           Case{"hybrid of 2", Strategy::hybrid_shard, 2, 1, 0, {4, 5}, {1, 3, 5, 7}, {}},
           Case{"hpZ", Strategy::full_shard, 0, 4, 0, all, {5}, {4, 5, 6, 7}},
           Case{"reshard to 2", Strategy::full_shard, 0, 1, 2, all, {5}, {4, 5}},
           Case{"reshard to all is full_shard", Strategy::full_shard, 0, 1, 8, all, {5}, {}},
           Case{"reshard in a hybrid",
                Strategy::hybrid_shard,
                0,
                1,
                2,
                {4, 5, 6, 7},
                {1, 5},
                {4, 5}},
           Case{"nothing to reshard", Strategy::shard_grad_op, 0, 1, 2, all, {5}, {}},
       }) {
    CAPTURE(each.name);
    RuntimeSettings settings = of_eight(5, each.strategy);
    settings.sharding.shard_size = each.shard_size;
    settings.sharding.hpz_partition_size = each.hpz;
    settings.sharding.reshard_size = each.reshard;
    const auto plan = acc::sharding::plan_groups(settings);
    CHECK(plan.world == all);
    CHECK(plan.shard == each.shard);
    CHECK(plan.replicate == each.replicate);
    CHECK(plan.secondary == each.secondary);
  }
}

TEST_CASE("impossible groups are errors that name the setting") {
  struct Case {
    void (*ask)(RuntimeSettings&);
    Strategy strategy;
    const char* says;
  };
  for (const Case& each : {
           Case{[](auto& s) { s.sharding.shard_size = 3; }, Strategy::hybrid_shard,
                "the shard size of the hybrid strategy is 3, which does not divide the 8 ranks"},
           Case{[](auto& s) { s.sharding.hpz_partition_size = 3; }, Strategy::full_shard,
                "zero_hpz_partition_size is 3"},
           Case{[](auto& s) { s.sharding.reshard_size = 3; }, Strategy::full_shard,
                "fsdp_reshard_after_forward is 3, which does not divide the 8 ranks of a shard"},
           Case{[](auto& s) { s.sharding.reshard_size = 8; }, Strategy::hybrid_shard,
                "fsdp_reshard_after_forward is 8, which does not divide the 4 ranks of a shard"},
           Case{[](auto& s) {
                  s.sharding.reshard_size = 2;
                  s.sharding.hpz_partition_size = 2;
                },
                Strategy::full_shard, "both set the ranks over which the backward gathers"},
           Case{[](auto& s) {
                  s.identity.local_world_sizes = {3, 5};
                },
                Strategy::hybrid_shard, "the machines have different numbers of ranks"},
           Case{[](auto& s) { s.sharding.quantized_weights = true; }, Strategy::shard_optimizer,
                "quantized_weights needs a strategy that shards weights, and shard_optimizer"},
       }) {
    RuntimeSettings settings = of_eight(1, each.strategy);
    each.ask(settings);
    CHECK_THROWS_WITH_AS(acc::sharding::plan_groups(settings), doctest::Contains(each.says),
                         acc::Error);
  }
}

TEST_CASE("quantised communication without effect is named, what is not served is refused") {
  using acc::sharding::Reach;
  struct Case {
    bool weights, gradients;
    Reach reach;
    const char* idle;  ///< null: refused
    const char* error;
  };
  constexpr Reach kEverything{.weights = true, .gradients = true};
  constexpr Reach kHybrid{.weights = false, .gradients = true};
  constexpr Reach kByNccl{.weights = true, .gradients = true, .by_nccl = true};
  for (const Case& each : {
           Case{true, true, kEverything, "", ""},
           Case{true, true, {}, "quantized_weights and quantized_gradients", ""},
           Case{false, true, {}, "quantized_gradients", ""},
           Case{false, false, {}, "", ""},
           Case{false, false, kByNccl, "", ""},
           Case{true, false, {.by_nccl = true}, "quantized_weights", ""},
           Case{false, true, kByNccl, nullptr,
                "quantized_gradients over NCCL between machines; ACC_COLLECTIVES=staged"},
           Case{true, true, kHybrid, "quantized_weights", ""},
           Case{false, true, kEverything, "", ""},
       }) {
    acc::settings::ShardingSettings sharding;
    sharding.quantized_weights = each.weights;
    sharding.quantized_gradients = each.gradients;
    const auto look = [&] { return acc::sharding::idle_quantization(sharding, each.reach); };
    if (each.idle != nullptr) {
      CHECK(look() == each.idle);
    } else {
      CHECK_THROWS_WITH(look(), doctest::Contains(each.error));
    }
  }
}

TEST_CASE("which parameters stay gathered") {
  struct Case {
    const char* name;
    std::int64_t parameter, model;
    std::vector<bool> stay;  ///< expected for parameters of 10, 100, 20, 5 elements
  };
  constexpr std::int64_t kAny = acc::settings::ShardingSettings::kUnbounded;
  for (const Case& each : {Case{"none", 0, kAny, {false, false, false, false}},
                           Case{"smaller than 20", 20, kAny, {true, false, false, true}},
                           Case{"all", 1000, kAny, {true, true, true, true}},
                           Case{"30 in all", 1000, 30, {true, false, true, false}}}) {
    CAPTURE(each.name);
    acc::settings::ShardingSettings settings;
    settings.param_persistence_threshold = each.parameter;
    settings.model_persistence_threshold = each.model;
    acc::sharding::PersistenceBudget budget(settings);
    std::vector<bool> stay;
    for (const std::int64_t numel : {10, 100, 20, 5}) {
      stay.push_back(budget.admits(numel));
    }
    CHECK(stay == each.stay);
  }
}
