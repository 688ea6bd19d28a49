// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/store.hpp"
#include "acc/runtime.hpp"
#include "support/run_ranks.hpp"

#include <doctest/doctest.h>

#include <functional>
#include <utility>
#include <vector>

namespace {

using acc::settings::ShardingSettings;
using acc::settings::Strategy;
using acc::test::Job;

/// The model for which the collectives of FSDP 2 were counted: a root of 2368 elements and three
/// blocks, 40480 elements in total. Each block has a bias of 32 elements.
constexpr std::int64_t kRoot = 2368;
constexpr std::int64_t kBlock = 12704;
constexpr std::int64_t kBias = 32;
constexpr std::int64_t kAll = kRoot + 3 * kBlock;

class Net {
 public:
  explicit Net(acc::Model& model) : root_(model.root("net", "Net")) {
    root_.parameter("embedding", {74, 32}, acc::normal(1.0F));
    for (int i = 0; i < 3; ++i) {
      blocks_.push_back(&model.unit("net.block" + std::to_string(i), "Block"));
      blocks_.back()->parameter("weight", {396, 32}, acc::normal(1.0F));
      blocks_.back()->parameter("bias", {kBias}, acc::zeros());
    }
  }

  void micro_step(bool recomputes) {
    {
      auto whole = root_.forward();
      for (acc::Unit* block : blocks_) {
        auto use = block->forward();
      }
    }
    auto whole = root_.backward();
    for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) {
      if (recomputes) {
        auto again = (*block)->recompute();
      }
      auto use = (*block)->backward();
    }
  }

 private:
  acc::Unit& root_;
  std::vector<acc::Unit*> blocks_;
};

struct Seen {
  acc::TrafficReport traffic;  ///< of the last step
  acc::MemoryReport memory;
};

/// Rank 0's report of the third step, in which every schedule has recorded the program.
Seen watch(const Job& job, bool recomputes = false, const acc::NamedRule& rule = {"adamw"}) {
  Seen seen;
  acc::test::run_ranks(job, [&](const auto& settings, auto store) {
    auto runtime = acc::Runtime::from_settings(settings, std::move(store));
    auto model = runtime.model(0, {.unused_units = true});
    Net net(model);
    auto optimizer = model.optimizer(rule);
    for (int step = 0; step < 3; ++step) {
      model.reset_traffic();
      do {
        net.micro_step(recomputes);
      } while (!runtime.last_micro_step(model));
      optimizer.step();
    }
    runtime.barrier();
    if (settings.identity.rank == 0) {
      seen = {model.traffic(), model.memory()};
    }
  });
  return seen;
}

/// Four ranks of one machine that copy in gathers, as ranks of several machines do.
Job copying(const ShardingSettings& sharding) {
  return {.world_size = 4, .sharding = sharding, .copy_gathers = true};
}

ShardingSettings settings_of(Strategy strategy,
                             const std::function<void(ShardingSettings&)>& set = {}) {
  ShardingSettings settings;
  settings.strategy = strategy;
  if (set) {
    set(settings);
  }
  return settings;
}

}  // namespace

TEST_CASE("gathers and reductions equal the counts of FSDP 2") {
  struct Case {
    const char* name;
    ShardingSettings sharding;
    std::int64_t gathered, gather_calls, reduced, reduce_calls, all_reduced;
  };
  const auto twice = [](ShardingSettings& s) { s.gradient_accumulation_steps = 2; };
  const auto groups = [](ShardingSettings& s) { s.shard_size = 2; };
  for (const Case& each : {
           Case{"full", settings_of(Strategy::full_shard), 78592, 7, 40480, 4, 0},
           Case{"reshard_after_forward false", settings_of(Strategy::shard_grad_op), 40480, 4,
                40480, 4, 0},
           Case{"a size reshards the root as well",
                settings_of(Strategy::full_shard, [](auto& s) { s.reshard_size = 2; }), 80960, 8,
                40480, 4, 0},
           Case{"2 x 2 hybrid", settings_of(Strategy::hybrid_shard, groups), 78592, 7, 40480, 4,
                20240},
           Case{"two micro-steps", settings_of(Strategy::full_shard, twice), 2 * 78592, 14, 80960,
                8, 0},
           Case{"two micro-steps, false", settings_of(Strategy::shard_grad_op, twice), 80960, 8,
                80960, 8, 0},
       }) {
    CAPTURE(each.name);
    const acc::TrafficReport traffic = watch(copying(each.sharding)).traffic;
    CHECK(traffic.gathered_elements == each.gathered);
    CHECK(traffic.gathered_elements_moved == each.gathered);
    CHECK(traffic.gather_calls == each.gather_calls);
    CHECK(traffic.reduced_elements == each.reduced);
    CHECK(traffic.reduce_calls == each.reduce_calls);
    CHECK(traffic.all_reduced_elements == each.all_reduced);
  }
}

TEST_CASE("two machines of two ranks: every strategy moves the elements of the formula") {
  struct Case {
    const char* name;
    ShardingSettings sharding;
    std::int64_t gathered, moved, secondary, reduced, all_reduced;
  };
  constexpr std::int64_t kTwice = 2 * kAll - kRoot;
  const auto size_of_two = [](ShardingSettings& s) { s.reshard_size = 2; };
  for (const Case& each : {
           Case{"no_shard", settings_of(Strategy::no_shard), 0, 0, 0, 0, kAll},
           Case{"shard_optimizer", settings_of(Strategy::shard_optimizer), 0, 0, 0, kAll, 0},
           Case{"shard_grad_op", settings_of(Strategy::shard_grad_op), kAll, kAll, 0, kAll, 0},
           Case{"full_shard", settings_of(Strategy::full_shard), kTwice, kTwice, 0, kAll, 0},
           Case{"hybrid_shard", settings_of(Strategy::hybrid_shard), kTwice, 0, 0, kAll, kAll / 2},
           Case{"hybrid_shard_zero2", settings_of(Strategy::hybrid_shard_zero2), kAll, 0, 0, kAll,
                kAll / 2},
           // Only the gather of the forward crosses machines.
           Case{"hpZ", settings_of(Strategy::full_shard, [](auto& s) { s.hpz_partition_size = 2; }),
                kTwice, kAll, kAll - kRoot, kAll, 0},
           Case{"reshard to a machine", settings_of(Strategy::full_shard, size_of_two), 2 * kAll,
                kAll, kAll, kAll, 0},
       }) {
    CAPTURE(each.name);
    const acc::TrafficReport traffic =
        watch({.world_size = 4, .num_machines = 2, .sharding = each.sharding}).traffic;
    CHECK(traffic.gathered_elements == each.gathered);
    CHECK(traffic.gathered_elements_moved == each.moved);
    CHECK(traffic.secondary_elements == each.secondary);
    CHECK(traffic.reduced_elements == each.reduced);
    CHECK(traffic.all_reduced_elements == each.all_reduced);
  }
}

TEST_CASE("micro-steps: hpZ's copy lasts until the step, a reshard size's until the backward") {
  struct Case {
    const char* name;
    int hpz, reshard;
    std::int64_t gathered, secondary;
  };
  constexpr std::int64_t kBlocks = kAll - kRoot;
  for (const Case& each : {Case{"hpZ", 2, 0, 2 * (kAll + kBlocks), 2 * kBlocks + kAll},
                           Case{"a size of 2", 1, 2, 4 * kAll, 2 * kAll}}) {
    CAPTURE(each.name);
    const auto sharding = settings_of(Strategy::full_shard, [&](ShardingSettings& s) {
      s.gradient_accumulation_steps = 2;
      s.hpz_partition_size = each.hpz;
      s.reshard_size = each.reshard;
    });
    const acc::TrafficReport traffic = watch(copying(sharding)).traffic;
    CHECK(traffic.gathered_elements == each.gathered);
    CHECK(traffic.secondary_elements == each.secondary);
  }
}

TEST_CASE("a recomputed forward shares its gather with the backward: two gathers, not three") {
  for (const int size : {0, 2}) {
    CAPTURE(size);
    const auto sharding =
        settings_of(Strategy::full_shard, [size](ShardingSettings& s) { s.reshard_size = size; });
    const acc::TrafficReport plain = watch(copying(sharding)).traffic;
    const acc::TrafficReport recomputed = watch(copying(sharding), true).traffic;
    CHECK(recomputed.gathered_elements == plain.gathered_elements);
    CHECK(recomputed.gather_calls == plain.gather_calls);
    CHECK(recomputed.reduced_elements == kAll);
  }
}

TEST_CASE("Muon gathers the directions of matrices and reduces the results") {
  struct Case {
    Strategy strategy;
    bool copies;
    std::int64_t gathers, reductions, replicas;  ///< more than those of AdamW, of the whole model
  };
  for (const Case& each :
       {Case{Strategy::full_shard, true, 4, 4, 0}, Case{Strategy::full_shard, false, 4, 0, 0},
        Case{Strategy::no_shard, true, 0, 0, 4}}) {
    CAPTURE(to_string(each.strategy));
    CAPTURE(each.copies);
    Job job = copying(settings_of(each.strategy));
    job.copy_gathers = each.copies;
    const acc::TrafficReport adamw = watch(job).traffic;
    const acc::TrafficReport muon = watch(job, false, {"muon"}).traffic;
    CHECK(muon.gather_calls == adamw.gather_calls + each.gathers);
    CHECK(muon.gathered_elements == adamw.gathered_elements + each.gathers / 4 * kAll);
    CHECK(muon.gathered_elements_moved ==
          adamw.gathered_elements_moved + (each.copies ? each.gathers / 4 * kAll : 0));
    CHECK(muon.reduce_calls == adamw.reduce_calls + each.reductions);
    CHECK(muon.reduced_elements == adamw.reduced_elements + each.reductions / 4 * kAll);
    CHECK(muon.all_reduce_calls == adamw.all_reduce_calls + each.replicas);
    CHECK(muon.all_reduced_elements == adamw.all_reduced_elements + each.replicas / 4 * kAll);
  }
}

TEST_CASE("micro-steps without sync gather each time and reduce once") {
  for (const auto& row :
       {std::pair{Strategy::full_shard, 2 * 78592}, std::pair{Strategy::shard_grad_op, 40480}}) {
    const Strategy strategy = row.first;
    const int gathered = row.second;
    CAPTURE(to_string(strategy));
    const auto sharding =
        settings_of(strategy, [](ShardingSettings& s) { s.gradient_accumulation_steps = 2; });
    acc::TrafficReport traffic;
    acc::test::run_ranks(copying(sharding), [&](const auto& settings, auto store) {
      auto runtime = acc::Runtime::from_settings(settings, std::move(store));
      auto model = runtime.model(0, {.unused_units = true});
      Net net(model);
      auto optimizer = model.optimizer(acc::AdamW{});
      {
        const auto local = model.no_sync();
        net.micro_step(false);
      }
      net.micro_step(false);
      optimizer.step();
      runtime.barrier();
      if (settings.identity.rank == 0) {
        traffic = model.traffic();
      }
    });
    CHECK(traffic.gathered_elements == gathered);
    CHECK(traffic.reduced_elements == kAll);
    CHECK(traffic.reduce_calls == 4);
  }
}

TEST_CASE("DeepSpeed's limits: units kept, freed and gathered ahead") {
  struct Case {
    const char* name;
    std::function<void(ShardingSettings&)> set;
    std::int64_t gathered;
    int buffers;  ///< peak of gathered memory, in blocks, with the root's buffer
  };
  constexpr std::int64_t kTwice = 2 * kAll - kRoot;
  const auto reuse = [](ShardingSettings& s) { s.max_reuse_distance = 1'000'000; };
  for (const Case& each : {
           Case{"nothing", [](auto&) {}, kTwice, 2},
           Case{"prefetch_bucket_size of one element: one unit ahead",
                [](auto& s) { s.prefetch_bucket_size = 1; }, kTwice, 3},
           Case{"prefetch_bucket_size of two units",
                [](auto& s) { s.prefetch_bucket_size = 20'000; }, kTwice, 4},
           Case{"and max_live_parameters in its way",
                [](auto& s) {
                  s.prefetch_bucket_size = 20'000;
                  s.max_live_parameters = kRoot + 2 * kBlock;
                },
                kTwice, 3},
           Case{"max_reuse_distance", reuse, kAll, 4},
           // The first two blocks stay gathered, the third is freed at once.
           Case{"max_reuse_distance within max_live_parameters",
                [&](auto& s) {
                  reuse(s);
                  s.max_live_parameters = kRoot + 2 * kBlock;
                },
                kAll + kBlock, 4},
           Case{"max_live_parameters frees the root as well",
                [](auto& s) { s.max_live_parameters = 1; }, 2 * kAll, 2},
       }) {
    CAPTURE(each.name);
    const Seen seen = watch(copying(settings_of(Strategy::full_shard, each.set)));
    CHECK(seen.traffic.gathered_elements == each.gathered);
    CHECK(seen.memory.gathered_bytes / (kBlock * 4) == each.buffers);
  }
}

TEST_CASE("FSDP's prefetches hold one more gathered unit and gather nothing twice") {
  struct Case {
    const char* name;
    std::function<void(ShardingSettings&)> set;
    int buffers;  ///< peak of gathered memory, in blocks, with the root's buffer
  };
  for (const Case& each :
       {Case{"none", [](auto&) {}, 2},
        Case{"backward_prefetch pre",
             [](auto& s) { s.backward_prefetch = acc::settings::BackwardPrefetch::backward_pre; },
             3},
        Case{"forward_prefetch", [](auto& s) { s.forward_prefetch = true; }, 3}}) {
    CAPTURE(each.name);
    const Seen seen = watch(copying(settings_of(Strategy::full_shard, each.set)));
    CHECK(seen.traffic.gathered_elements == 2 * kAll - kRoot);
    CHECK(seen.memory.gathered_bytes / (kBlock * 4) == each.buffers);
  }
}

TEST_CASE("parameters below the persistence threshold are gathered once per step") {
  struct Case {
    const char* name;
    std::int64_t parameter, model;
    std::int64_t once;  ///< elements that are not gathered again for the backward
    std::int64_t calls;
  };
  constexpr std::int64_t kAny = ShardingSettings::kUnbounded;
  for (const Case& each :
       {Case{"none", 0, kAny, kRoot, 7}, Case{"the biases", 100, kAny, kRoot + 3 * kBias, 10},
        Case{"two biases", 100, 2 * kBias, kRoot + 2 * kBias, 9},
        Case{"all", 1'000'000, kAny, kAll, 4}}) {
    for (const int machines : {1, 2}) {
      CAPTURE(each.name);
      CAPTURE(machines);
      Job job = copying(settings_of(Strategy::full_shard, [&](ShardingSettings& s) {
        s.param_persistence_threshold = each.parameter;
        s.model_persistence_threshold = each.model;
      }));
      job.num_machines = machines;
      const Seen seen = watch(job);
      CHECK(seen.traffic.gathered_elements == 2 * kAll - each.once);
      CHECK(seen.traffic.gather_calls == each.calls);
      CHECK(seen.traffic.reduced_elements == kAll);
    }
  }
}

TEST_CASE("without overlap_comm one reduction at a time is under way") {
  const auto waits = [](ShardingSettings& s) { s.overlap_comm = false; };
  const Seen overlapping = watch(copying(settings_of(Strategy::full_shard)));
  const Seen waiting = watch(copying(settings_of(Strategy::full_shard, waits)));
  CHECK(overlapping.memory.gradient_buffer_bytes / (kBlock * 4) == 2);
  CHECK(waiting.memory.gradient_buffer_bytes / (kBlock * 4) == 1);
  CHECK(waiting.traffic.reduced_elements == kAll);
}

TEST_CASE("a recomputation without a following backward is refused") {
  auto runtime = acc::Runtime::from_settings({}, nullptr);
  auto model = runtime.model(0, {.unused_units = true});
  auto& unit = model.unit("layer", "Layer");
  unit.parameter("weight", {2}, acc::zeros());
  CHECK_THROWS_WITH_AS((void)unit.recompute(), doctest::Contains("unit 'layer': recomputation"),
                       acc::Error);
}

TEST_CASE("units that stay gathered are held whole") {
  const auto all = settings_of(
      Strategy::full_shard, [](ShardingSettings& s) { s.param_persistence_threshold = 1'000'000; });
  const acc::MemoryReport sharded = watch(copying(settings_of(Strategy::full_shard))).memory;
  const acc::MemoryReport persistent = watch(copying(all)).memory;
  CHECK(sharded.parameter_bytes < kAll * 4 / 3);
  CHECK(persistent.parameter_bytes >= kAll * 4);
  CHECK(persistent.gathered_bytes == 0);
  CHECK(persistent.optimizer_bytes == sharded.optimizer_bytes);
}
