// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/store.hpp"
#include "acc/runtime.hpp"
#include "acc/settings/environment.hpp"
#include "support/run_ranks.hpp"

#include <doctest/doctest.h>

#include <atomic>

namespace {

using acc::settings::Environment;
using acc::settings::ProgramSettings;
using acc::settings::RuntimeSettings;
using acc::settings::Strategy;
using acc::test::Job;

constexpr int kWorld = 2;
constexpr std::int64_t kNumel = 4096;

/// The values of a program, on every rank that a launcher started with `environment`.
RuntimeSettings settings_of_rank(const RuntimeSettings& rank, const Environment& environment,
                                 const ProgramSettings& program) {
  RuntimeSettings settings = acc::settings::settings_from_environment(environment, program);
  settings.identity = rank.identity;
  return settings;
}

struct Outcome {
  std::int64_t optimizer_bytes = 0;
  int micro_steps = 0;
  double clip_norm = 0.0;
  std::string described;
};

/// Makes one step of a model with kNumel parameters on every rank; returns rank 0's result.
Outcome outcome_of(const Environment& environment, const ProgramSettings& program) {
  Outcome outcome;
  Job job;
  job.world_size = kWorld;
  acc::test::run_ranks(job, [&](const RuntimeSettings& rank, auto store) {
    auto runtime =
        acc::Runtime::from_settings(settings_of_rank(rank, environment, program), std::move(store));
    auto model = runtime.model(1);
    auto& unit = model.unit("layer", "Layer");
    const auto weight = unit.parameter("weight", {kNumel}, acc::ones());
    auto optimizer = model.optimizer(acc::AdamW{});
    int micro_steps = 0;
    for (bool last = false; !last; ++micro_steps) {
      unit.forward().end();
      auto use = unit.backward();
      float* const gradient = use.grad_to_add(weight);
      gradient[0] += 1.0F;
      use.end();
      last = runtime.last_micro_step(model);
    }
    optimizer.step();
    if (runtime.rank() == 0) {
      outcome = {model.memory().optimizer_bytes, micro_steps, optimizer.clip_norm(),
                 runtime.describe()};
    }
  });
  return outcome;
}

bool says(const Outcome& outcome, const std::string& part) {
  return outcome.described.find(part) != std::string::npos;
}

TEST_CASE("a program's plugin overrides the launcher's settings") {
  const Environment launched = {{"ACC_MODE", "fsdp"},
                                {"FSDP_SHARDING_STRATEGY", "NO_SHARD"},
                                {"ACC_GRADIENT_ACCUMULATION_STEPS", "2"},
                                {"ACC_GRADIENT_CLIPPING", "0.5"}};
  const Outcome launchers = outcome_of(launched, {});
  CHECK(launchers.optimizer_bytes == 8 * kNumel);
  CHECK(launchers.micro_steps == 2);
  CHECK_FALSE(says(launchers, "the program's"));

  acc::FullyShardedDataParallelPlugin plugin;
  plugin.sharding_strategy = Strategy::full_shard;
  plugin.gradient_accumulation_steps = 3;
  const Outcome programs = outcome_of(launched, plugin.program_settings());
  CHECK(programs.optimizer_bytes == 8 * kNumel / kWorld);
  CHECK(programs.micro_steps == 3);
  CHECK(programs.clip_norm == 0.5);  // the launcher's value
  CHECK(says(programs, "full_shard (from fsdp)"));
  CHECK(says(programs,
             "; the program's FullyShardedDataParallelPlugin sets gradient_accumulation_steps 3 "
             "instead of the launcher's 2, sharding_strategy FULL_SHARD instead of the launcher's "
             "NO_SHARD"));
}

TEST_CASE("a program's plugin takes effect without launcher settings") {
  acc::DeepSpeedPlugin plugin;
  plugin.zero_stage = 1;
  plugin.gradient_clipping = 2.0;
  const Outcome outcome = outcome_of({}, plugin.program_settings());
  CHECK(outcome.optimizer_bytes == 8 * kNumel / kWorld);
  CHECK(outcome.clip_norm == 2.0);
  CHECK(says(outcome, "shard_optimizer (from deepspeed)"));
  CHECK(says(outcome, "DeepSpeedPlugin sets gradient_clipping 2, zero_stage 1"));
}

TEST_CASE("Runtime::from_environment accepts a plugin") {
  acc::FullyShardedDataParallelPlugin fsdp;
  fsdp.sharding_strategy = Strategy::shard_grad_op;
  fsdp.deterministic = true;
  const auto runtime = acc::Runtime::from_environment(fsdp);
  CHECK(runtime.settings().sharding.strategy == Strategy::shard_grad_op);
  CHECK(runtime.settings().sharding.deterministic);
  CHECK(runtime.describe().find(", deterministic") != std::string::npos);
  acc::DeepSpeedPlugin zero3;
  zero3.zero_stage = 3;
  zero3.offload_param_device = acc::settings::OffloadDevice::nvme;
  zero3.offload_param_nvme_path = "/nvme";
  const auto offloaded = acc::Runtime::from_environment(zero3).settings().sharding;
  CHECK(offloaded.offload_param == acc::settings::OffloadDevice::nvme);
  CHECK(offloaded.offload_param_nvme_path == "/nvme");
}

TEST_CASE("ranks whose programs set different plugins all fail at the start") {
  Job job;
  job.world_size = 3;
  std::atomic<int> told = 0;
  acc::test::run_ranks(job, [&](const RuntimeSettings& rank, auto store) {
    acc::DeepSpeedPlugin plugin;
    plugin.zero_stage = rank.identity.rank == 2 ? 3 : 2;
    const auto settings = settings_of_rank(rank, {}, plugin.program_settings());
    try {
      acc::Runtime::from_settings(settings, std::move(store));
    } catch (const acc::Error& error) {
      told += error.code() == acc::Errc::disagreement &&
              std::string(error.what())
                      .find(
                          "rank 2 has the program's plugin=DeepSpeedPlugin with zero_stage 3, "
                          "rank 0 has the program's plugin=DeepSpeedPlugin with zero_stage 2") !=
                  std::string::npos;
    }
  });
  CHECK(told == 3);
}

}  // namespace
