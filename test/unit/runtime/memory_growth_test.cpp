// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/store.hpp"
#include "acc/runtime.hpp"
#include "acc/settings/environment.hpp"
#include "support/run_ranks.hpp"

#include <doctest/doctest.h>
#include <malloc.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

// A step leaves nothing behind. bench/soak.py looks at whole processes, over more steps.
namespace {

using acc::settings::Environment;

constexpr int kGrowthWarmup = 50;
constexpr int kGrowthSteps = 100;
/// Smaller than anything that a step could keep. Queues have one block more or less.
constexpr std::int64_t kLeastGrowth = 48;

/// Bytes that this process has allocated by `new` and not freed.
std::atomic<std::int64_t> bytes_in_use{0};

struct GrowthCase {
  Environment environment;
  int ranks = 2;
  bool copies = false;  ///< gathers copy, as between machines
  bool no_sync = false;
};

std::string words_of(const GrowthCase& each) {
  std::string words;
  for (const auto& [name, value] : each.environment) {
    words += name + "=" + value + " ";
  }
  return words + (each.copies ? "copies " : "") + (each.no_sync ? "no_sync" : "");
}

/// Returns the bytes per step that the steps of all ranks leave behind.
std::int64_t growth_per_step(const GrowthCase& each) {
  Environment environment = each.environment;
  environment["WORLD_SIZE"] = std::to_string(each.ranks);
  const auto settings = acc::settings::settings_from_environment(environment);
  const acc::test::Job job{
      .world_size = each.ranks, .sharding = settings.sharding, .copy_gathers = each.copies};
  std::int64_t before = 0;
  std::int64_t after = 0;
  acc::test::run_ranks(job, [&](const auto& own, auto store) {
    auto runtime = acc::Runtime::from_settings(own, std::move(store));
    auto model = runtime.model(1);
    std::vector<acc::Unit*> units;
    std::vector<acc::Parameter> weights;
    const std::vector<std::int64_t> numels = {40, 1501, 777};
    for (std::size_t i = 0; i < numels.size(); ++i) {
      units.push_back(&model.unit("unit" + std::to_string(i), "Layer"));
      weights.push_back(units.back()->parameter("weight", {numels[i]}, acc::ones()));
    }
    auto optimizer = model.optimizer(acc::AdamW{});
    const auto micro_step = [&] {
      for (acc::Unit* const unit : units) {
        unit->forward().end();
      }
      for (std::size_t i = units.size(); i-- > 0;) {
        auto use = units[i]->backward();
        std::memset(use.raw_grad(weights[i]).data, 0,
                    static_cast<std::size_t>(numels[i]) * acc::nbytes_of(model.compute_dtype()));
        use.end();
      }
    };
    for (int step = 0; step < kGrowthWarmup + kGrowthSteps; ++step) {
      for (bool last = false; !last; last = runtime.last_micro_step(model)) {
        const auto quiet = each.no_sync && step % 2 == 0 ? model.no_sync() : nullptr;
        micro_step();
      }
      optimizer.step();
      if (step == kGrowthWarmup - 1 || step == kGrowthWarmup + kGrowthSteps - 1) {
        runtime.barrier();  // no rank computes
        if (own.identity.rank == 0) {
          (step < kGrowthWarmup ? before : after) = bytes_in_use;
        }
        runtime.barrier();
      }
    }
  });
  return (after - before) / kGrowthSteps;
}

Environment fsdp(const std::string& strategy, Environment more = {}) {
  more["ACC_MODE"] = "fsdp";
  more["ACC_FSDP_SHARDING_STRATEGY"] = strategy;
  return more;
}

Environment zero(int stage, Environment more = {}) {
  more["ACC_MODE"] = "deepspeed";
  more["ACC_ZERO_STAGE"] = std::to_string(stage);
  more["ACC_STAGE3_PARAM_PERSISTENCE_THRESHOLD"] = "100";  // one unit stays gathered
  return more;
}

/// Every strategy in every way that changes what a step allocates.
std::vector<GrowthCase> growth_cases() {
  const Environment halves = {{"ACC_PARALLELISM_CONFIG_DP_SHARD_SIZE", "2"}};
  const Environment offload = {{"ACC_OFFLOAD_OPTIMIZER_DEVICE", "cpu"}};
  std::vector<GrowthCase> all = {
      {zero(1, offload)},
      {zero(2, offload)},
      {zero(3, {{"ACC_OFFLOAD_OPTIMIZER_DEVICE", "cpu"}, {"ACC_OFFLOAD_PARAM_DEVICE", "cpu"}})},
      {fsdp("FULL_SHARD", {{"ACC_FSDP_OFFLOAD_PARAMS", "true"}})},
      {zero(1, {{"ACC_CONTIGUOUS_GRADIENTS", "false"}})},
      {zero(2, {{"ACC_CONTIGUOUS_GRADIENTS", "false"}, {"ACC_OVERLAP_COMM", "true"}})},
      {zero(3, {{"ACC_CONTIGUOUS_GRADIENTS", "false"}, {"ACC_OVERLAP_COMM", "false"}})}};
  for (const GrowthCase& plain :
       {GrowthCase{fsdp("NO_SHARD")}, GrowthCase{fsdp("SHARD_GRAD_OP")},
        GrowthCase{fsdp("FULL_SHARD")}, GrowthCase{fsdp("HYBRID_SHARD", halves), 4},
        GrowthCase{fsdp("HYBRID_SHARD_ZERO2", halves), 4}, GrowthCase{zero(0)}, GrowthCase{zero(1)},
        GrowthCase{zero(2)}, GrowthCase{zero(3)},
        GrowthCase{zero(3, {{"ACC_ZERO_HPZ_PARTITION_SIZE", "2"}}), 4}}) {
    all.push_back(plain);
    all.push_back(plain);
    all.back().environment["ACC_MIXED_PRECISION"] = "bf16";
    all.back().environment["ACC_GRADIENT_ACCUMULATION_STEPS"] = "2";
    all.back().no_sync = true;
    all.push_back(plain);
    all.back().environment["ACC_MIXED_PRECISION"] = "fp16";
    all.back().copies = true;
  }
  return all;
}

}  // namespace

void* operator new(std::size_t nbytes) {
  void* const memory = std::malloc(nbytes);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  bytes_in_use += static_cast<std::int64_t>(::malloc_usable_size(memory));
  return memory;
}

void operator delete(void* memory) noexcept {
  bytes_in_use -= static_cast<std::int64_t>(::malloc_usable_size(memory));
  std::free(memory);
}

void operator delete(void* memory, std::size_t /*nbytes*/) noexcept {
  ::operator delete(memory);
}

TEST_CASE("a step leaves no memory behind, in any strategy") {
  for (const GrowthCase& each : growth_cases()) {
    CAPTURE(words_of(each));
    CHECK(growth_per_step(each) < kLeastGrowth);
  }
}
