// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/settings/deepspeed_plugin.hpp"
#include "acc/settings/environment.hpp"
#include "acc/settings/fsdp_plugin.hpp"
#include "support/errors.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

namespace acc::settings {
namespace {

using test::contains;
using Words = std::vector<std::string>;

Environment environment_of(int world_size, Environment more) {
  more.insert({{"RANK", "0"},
               {"WORLD_SIZE", std::to_string(world_size)},
               {"LOCAL_RANK", "0"},
               {"LOCAL_WORLD_SIZE", std::to_string(world_size)},
               {"MASTER_ADDR", "10.0.0.1"},
               {"MASTER_PORT", "29500"}});
  return more;
}

std::string refusal(const Environment& environment, const ProgramSettings& program) {
  return test::refusal([&] { return settings_from_environment(environment, program); });
}

/// Returns a plugin in which each field is set to a value other than its default.
FullyShardedDataParallelPlugin full_fsdp() {
  FullyShardedDataParallelPlugin plugin;
  plugin.mixed_precision = MixedPrecision::bf16;
  plugin.reduce_dtype = ReduceDtype::fp32;
  plugin.quantized_weights = true;
  plugin.quantized_gradients = true;
  plugin.nan_policy = NanPolicy::skip;
  plugin.stochastic_rounding = true;
  plugin.deterministic = true;
  plugin.save_async = true;
  plugin.memory_checkpoint_every = 9;
  plugin.memory_checkpoint_rate = 10;
  plugin.gradient_accumulation_steps = 3;
  plugin.gradient_clipping = 0.5;
  plugin.fsdp_version = 2;
  plugin.reshard_after_forward = 2;
  plugin.backward_prefetch = BackwardPrefetch::backward_post;
  plugin.cpu_offload = true;
  plugin.state_dict_type = StateDictType::full;
  plugin.auto_wrap_policy = WrapPolicy::size_based;
  plugin.transformer_cls_names_to_wrap = Words{"Block", "Head"};
  plugin.min_num_params = 77;
  plugin.use_orig_params = false;
  plugin.sync_module_states = false;
  plugin.forward_prefetch = true;
  plugin.limit_all_gathers = false;
  plugin.cpu_ram_efficient_loading = false;
  plugin.activation_checkpointing = true;
  plugin.activation_checkpointing_offload = true;
  plugin.ignored_modules = "head.*";
  plugin.dp_replicate_size = 2;
  plugin.dp_shard_size = 4;
  return plugin;
}

DeepSpeedPlugin full_deepspeed() {
  DeepSpeedPlugin plugin;
  plugin.mixed_precision = MixedPrecision::fp16;
  plugin.reduce_dtype = ReduceDtype::bf16;
  plugin.quantized_weights = true;
  plugin.quantized_gradients = true;
  plugin.nan_policy = NanPolicy::raise;
  plugin.gradient_accumulation_steps = 2;
  plugin.gradient_clipping = 1.5;
  plugin.zero_stage = 3;
  plugin.offload_optimizer_device = OffloadDevice::cpu;
  plugin.offload_param_device = OffloadDevice::nvme;
  plugin.offload_optimizer_nvme_path = "/nvme/o";
  plugin.offload_param_nvme_path = "/nvme/p";
  plugin.zero3_init_flag = false;
  plugin.zero3_save_16bit_model = true;
  plugin.zero_hpz_partition_size = 4;
  plugin.reduce_bucket_size = 11;
  plugin.allgather_bucket_size = 12;
  plugin.stage3_prefetch_bucket_size = 13;
  plugin.stage3_param_persistence_threshold = 14;
  plugin.stage3_model_persistence_threshold = 15;
  plugin.stage3_max_live_parameters = 16;
  plugin.stage3_max_reuse_distance = 17;
  plugin.sub_group_size = 18;
  plugin.overlap_comm = false;
  plugin.contiguous_gradients = false;
  plugin.round_robin_gradients = true;
  plugin.loss_scale = 64;
  plugin.initial_scale_power = 8;
  plugin.loss_scale_window = 100;
  plugin.hysteresis = 3;
  plugin.consecutive_hysteresis = true;
  plugin.min_loss_scale = 0.5;
  return plugin;
}

Settings settings_of(const ProgramSettings& program) {
  Settings settings;
  for (const ProgramValue& value : program.values) {
    settings.set_named(value.key, value.text, {Source::Kind::program, value.field});
  }
  return settings;
}

TEST_CASE("each plugin field round-trips through its setting") {
  const FullyShardedDataParallelPlugin fsdp = full_fsdp();
  auto expected = fsdp;
  expected.sharding_strategy = Strategy::full_shard;  // the setting's default
  CHECK(FullyShardedDataParallelPlugin::from_settings(settings_of(fsdp.program_settings())) ==
        expected);
  const DeepSpeedPlugin deepspeed = full_deepspeed();
  auto read = DeepSpeedPlugin::from_settings(settings_of(deepspeed.program_settings()));
  CHECK(read.stochastic_rounding == false);
  read.stochastic_rounding = std::nullopt;
  CHECK(read.deterministic == false);
  read.deterministic = std::nullopt;
  CHECK(read.save_async == false);
  read.save_async = std::nullopt;
  CHECK(read.memory_checkpoint_every == 0);
  read.memory_checkpoint_every = std::nullopt;
  CHECK(read.memory_checkpoint_rate == 0);
  read.memory_checkpoint_rate = std::nullopt;
  CHECK(read == deepspeed);
}

TEST_CASE("setting a field by name and text equals assigning it") {
  FullyShardedDataParallelPlugin fsdp;
  for (const ProgramValue& value : full_fsdp().program_settings().values) {
    fsdp.set(value.field, value.text);
  }
  CHECK(fsdp == full_fsdp());
  DeepSpeedPlugin deepspeed;
  for (const ProgramValue& value : full_deepspeed().program_settings().values) {
    deepspeed.set(value.field, value.text);
  }
  CHECK(deepspeed == full_deepspeed());
  fsdp.set("reshard_after_forward", "no");
  CHECK(fsdp.reshard_after_forward == std::variant<bool, int>(false));
}

TEST_CASE("a wrong field or value is refused by name") {
  FullyShardedDataParallelPlugin fsdp;
  DeepSpeedPlugin deepspeed;
  CHECK_THROWS_WITH_AS(fsdp.set("sharding_stratgy", "FULL_SHARD"),
                       "FullyShardedDataParallelPlugin has no field \"sharding_stratgy\"; did you "
                       "mean \"sharding_strategy\"?",
                       Error);
  CHECK_THROWS_WITH_AS(fsdp.set("sharding_strategy", "ALL"),
                       doctest::Contains("FullyShardedDataParallelPlugin.sharding_strategy must be "
                                         "FULL_SHARD, SHARD_GRAD_OP, "),
                       Error);
  CHECK_THROWS_WITH_AS(
      fsdp.set("reshard_after_forward", "perhaps"),
      doctest::Contains("FullyShardedDataParallelPlugin.reshard_after_forward must "
                        "be true, false or a group size"),
      Error);
  CHECK_THROWS_WITH_AS(deepspeed.set("zero_stage", "4"),
                       "DeepSpeedPlugin.zero_stage must be an integer 0..3, got \"4\"", Error);
  deepspeed.zero_stage = 7;
  fsdp.sharding_strategy = Strategy::shard_optimizer;  // FSDP has no such strategy
  CHECK(refusal(environment_of(4, {}), deepspeed.program_settings()) ==
        "DeepSpeedPlugin.zero_stage must be an integer 0..3, got \"7\"");
  CHECK(contains(refusal(environment_of(4, {}), fsdp.program_settings()),
                 "FullyShardedDataParallelPlugin.sharding_strategy must be FULL_SHARD"));
}

TEST_CASE("the program's values replace the launcher's, and each replacement is reported") {
  const Environment launched = environment_of(4, {{"ACC_MODE", "fsdp"},
                                                  {"FSDP_SHARDING_STRATEGY", "SHARD_GRAD_OP"},
                                                  {"FSDP_FORWARD_PREFETCH", "true"},
                                                  {"ACC_GRADIENT_ACCUMULATION_STEPS", "8"},
                                                  {"ACC_GRADIENT_CLIPPING", "1.0"},
                                                  {"ACCELERATE_MIXED_PRECISION", "no"}});
  FullyShardedDataParallelPlugin plugin;
  plugin.sharding_strategy = Strategy::full_shard;
  plugin.forward_prefetch = true;
  plugin.gradient_accumulation_steps = 2;
  plugin.mixed_precision = MixedPrecision::bf16;
  plugin.reduce_dtype = ReduceDtype::fp32;
  const RuntimeSettings settings = settings_from_environment(launched, plugin.program_settings());
  CHECK(settings.origin == "fsdp");
  CHECK(settings.sharding.strategy == Strategy::full_shard);
  CHECK(settings.sharding.forward_prefetch);
  CHECK(settings.sharding.gradient_accumulation_steps == 2);
  CHECK(settings.sharding.gradient_clipping == 1.0);
  CHECK(settings.sharding.mixed_precision == MixedPrecision::bf16);
  CHECK(settings.sharding.reduce_precision == MixedPrecision::no);
  CHECK(settings.program_plugin == "FullyShardedDataParallelPlugin");
  CHECK(settings.program_values ==
        Words{"mixed_precision bf16 instead of the launcher's no", "reduce_dtype fp32",
              "gradient_accumulation_steps 2 instead of the launcher's 8",
              "sharding_strategy FULL_SHARD instead of the launcher's SHARD_GRAD_OP",
              "forward_prefetch true"});
}

TEST_CASE("the plugin's mode is used if the environment has none") {
  DeepSpeedPlugin zero3;
  zero3.zero_stage = 3;
  for (const Environment& environment :
       {environment_of(4, {}), environment_of(4, {{"ACC_MODE", "none"}}),
        environment_of(4, {{"ACC_MODE", "deepspeed"}, {"ACC_ZERO_STAGE", "1"}})}) {
    const auto settings = settings_from_environment(environment, zero3.program_settings());
    CHECK(settings.origin == "deepspeed");
    CHECK(settings.sharding.strategy == Strategy::full_shard);
  }
  const FullyShardedDataParallelPlugin nothing_set;
  CHECK(settings_from_environment(environment_of(4, {}), nothing_set.program_settings()).origin ==
        "fsdp");
}

TEST_CASE("contradictions are refused with both places") {
  FullyShardedDataParallelPlugin no_shard;
  no_shard.sharding_strategy = Strategy::no_shard;
  FullyShardedDataParallelPlugin reshard;
  reshard.reshard_after_forward = false;
  FullyShardedDataParallelPlugin groups;
  groups.dp_shard_size = 3;
  FullyShardedDataParallelPlugin local;
  local.state_dict_type = StateDictType::local;
  FullyShardedDataParallelPlugin offload;
  offload.activation_checkpointing_offload = true;
  DeepSpeedPlugin zero2;
  zero2.zero_stage = 2;
  DeepSpeedPlugin nvme;
  nvme.offload_optimizer_device = OffloadDevice::nvme;
  const Environment fsdp2 = {{"ACC_MODE", "fsdp"}, {"FSDP_VERSION", "2"}};
  const Environment zero = {{"ACC_MODE", "deepspeed"}};
  struct Case {
    Environment environment;
    ProgramSettings program;
    Words parts;
  };
  for (const auto& [environment, program, parts] : std::vector<Case>{
           {{{"ACC_MODE", "fsdp"}, {"PARALLELISM_CONFIG_DP_SHARD_SIZE", "2"}},
            no_shard.program_settings(),
            {"parallelism_config_dp_shard_size 2 (environment PARALLELISM_CONFIG_DP_SHARD_SIZE)",
             "no meaning with fsdp_sharding_strategy NO_SHARD "
             "(FullyShardedDataParallelPlugin.sharding_strategy)"}},
           {{{"ACC_MODE", "deepspeed"}},
            no_shard.program_settings(),
            {"FullyShardedDataParallelPlugin contradicts ACC_MODE", "deepspeed", "--use_fsdp"}},
           {{{"ACCELERATE_USE_FSDP", "true"}},
            zero2.program_settings(),
            {"DeepSpeedPlugin contradicts ACCELERATE_USE_FSDP"}},
           {{{"ACC_MODE", "deepspeed"}, {"ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", "cpu"}},
            zero2.program_settings(),
            {"offload_param_device cpu (environment ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE) "
             "needs zero_stage 3, but there is zero_stage 2 (DeepSpeedPlugin.zero_stage)"}},
           {{{"ACC_MODE", "deepspeed"}, {"ACC_ZERO_HPZ_PARTITION_SIZE", "2"}},
            zero2.program_settings(),
            {"zero_hpz_partition_size 2 (environment ACC_ZERO_HPZ_PARTITION_SIZE)",
             "(DeepSpeedPlugin.zero_stage)"}},
           {zero,
            nvme.program_settings(),
            {"offload_optimizer_device nvme (DeepSpeedPlugin.offload_optimizer_device) needs "
             "offload_optimizer_nvme_path"}},
           {fsdp2,
            no_shard.program_settings(),
            {"FullyShardedDataParallelPlugin.sharding_strategy",
             "fsdp_version 2 (environment FSDP_VERSION)"}},
           {{{"ACC_MODE", "fsdp"}},
            reshard.program_settings(),
            {"FullyShardedDataParallelPlugin.reshard_after_forward", "fsdp_version 1 (default)"}},
           {fsdp2,
            local.program_settings(),
            {"FullyShardedDataParallelPlugin.state_dict_type", "FSDP 2 has no LOCAL"}},
           {fsdp2,
            offload.program_settings(),
            {"FullyShardedDataParallelPlugin.activation_checkpointing_offload needs",
             "fsdp_activation_checkpointing false (default)"}},
           {{},
            groups.program_settings(),
            {"parallelism_config_dp_shard_size 3 does not divide the 4 processes",
             "FullyShardedDataParallelPlugin.dp_shard_size"}},
       }) {
    const std::string message = refusal(environment_of(4, environment), program);
    CAPTURE(message);
    for (const std::string& part : parts) {
      CAPTURE(part);
      CHECK(contains(message, part));
    }
  }
}

}  // namespace
}  // namespace acc::settings
