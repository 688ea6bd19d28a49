// SPDX-License-Identifier: Apache-2.0
#include "acc/settings/environment.hpp"

#include "acc/base/error.hpp"
#include "acc/settings/fp8_settings.hpp"
#include "acc/settings/setting_rows.hpp"
#include "support/errors.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <functional>
#include <set>

namespace acc::settings {
namespace {

constexpr int kWorld = 8;

Environment with_identity(Environment environment) {
  environment.insert({{"RANK", "5"},
                      {"WORLD_SIZE", "8"},
                      {"LOCAL_RANK", "1"},
                      {"LOCAL_WORLD_SIZE", "4"},
                      {"GROUP_RANK", "1"},
                      {"GROUP_WORLD_SIZE", "2"},
                      {"MASTER_ADDR", "10.0.0.1"},
                      {"MASTER_PORT", "29500"}});
  return environment;
}

/// Returns values to try for a row: each choice, both booleans, both ends of a range.
std::vector<std::string> samples(const SettingRow& row) {
  static const std::set<std::string_view> kPrograms = {
      "parallelism_config_tp_size", "parallelism_config_cp_size", "parallelism_config_sp_size"};
  if (kPrograms.contains(row.key)) {
    return {"1"};  // larger values are for Python programs; the runtime refuses them
  }
  if (row == "optimizer_betas"_key) {
    return {"0.9,0.95"};
  }
  switch (row.type) {
    case Type::boolean: return {"true", "false"};
    case Type::integer: return {"1", row.allowed.ends_with("..1") ? "1" : "2"};
    case Type::count:
      return row.allowed.ends_with("..127") ? std::vector<std::string>{"1e1", "12"}
                                            : std::vector<std::string>{"4e3", "12345"};
    case Type::real: return {"0.5", "2.0"};
    case Type::size: return {"4096", "64MiB"};
    case Type::duration: return {"500ms", "2h"};
    case Type::list: return {"Block", "Block,Head"};
    case Type::text: return {row == "fsdp_reshard_after_forward"_key ? "false" : "/some/text"};
    case Type::choice:
    case Type::numbered_choice: break;
  }
  std::vector<std::string> choices;
  for (const std::string_view choice : split(row.allowed, '|')) {
    choices.emplace_back(choice);
  }
  return choices;
}

/// Returns settings under which `row` has an effect and contradicts no other setting.
Settings ground_for(const SettingRow& row, std::string_view origin) {
  Settings settings;
  const Source source = {Source::Kind::flag, "--ground"};
  if (origin == "deepspeed") {
    settings.set("offload_param_nvme_path"_key, "/nvme/p", source);
    settings.set("offload_optimizer_nvme_path"_key, "/nvme/o", source);
    settings.set("zero_stage"_key, "3", source);
  }
  if (row == "fsdp_reshard_after_forward"_key ||
      row == "fsdp_activation_checkpointing_offload"_key) {
    settings.set("fsdp_version"_key, "2", source);
    settings.set("fsdp_activation_checkpointing"_key, "true", source);
  }
  return settings;
}

TEST_CASE("exported settings are read back unchanged: every row, mode and source") {
  int tried = 0;
  for (const std::string origin : {"none", "fsdp", "deepspeed"}) {
    for (const SettingRow& row : settings_table()) {
      const bool launcher_only = row.section == Section::launch && row.environment.empty();
      if (launcher_only || !applies(row.section, origin)) {
        continue;
      }
      for (const std::string& value : samples(row)) {
        for (const auto kind : {Source::Kind::file, Source::Kind::deepspeed_file}) {
          if (kind == Source::Kind::deepspeed_file && row.json.empty()) {
            continue;
          }
          CAPTURE(origin);
          CAPTURE(row.key);
          CAPTURE(value);
          Settings settings = ground_for(row, origin);
          settings.set(row, value, {kind, "somewhere"});
          const auto expected = sharding_settings(settings, origin, kWorld);
          const auto found = settings_from_environment(
              with_identity(settings_to_environment(settings, origin, Device::cuda)));
          CHECK(found.sharding == expected);
          CHECK(found.origin == origin);
          CHECK(found.device == Device::cuda);
          ++tried;
        }
      }
    }
  }
  CHECK(tried > 100);
}

TEST_CASE("each field of the sharding settings can be set by its setting") {
  struct Case {
    std::string origin, key, value;
    std::function<bool(const ShardingSettings&)> holds;
  };
  const std::vector<Case> cases = {
      {"fsdp", "fsdp_offload_params", "true",
       [](const auto& s) {
         return s.offload_param == OffloadDevice::cpu && s.offload_optimizer == OffloadDevice::cpu;
       }},
      {"fsdp", "fsdp_auto_wrap_policy", "SIZE_BASED_WRAP",
       [](const auto& s) { return s.wrap_policy == WrapPolicy::size_based; }},
      {"fsdp", "fsdp_state_dict_type", "3",
       [](const auto& s) { return s.state_dict_type == StateDictType::sharded; }},
      {"fsdp", "fsdp_min_num_params", "77", [](const auto& s) { return s.min_num_params == 77; }},
      {"fsdp", "fsdp_forward_prefetch", "yes", [](const auto& s) { return s.forward_prefetch; }},
      {"fsdp", "fsdp_limit_all_gathers", "no", [](const auto& s) { return !s.limit_all_gathers; }},
      {"fsdp", "fsdp_use_orig_params", "no", [](const auto& s) { return !s.use_orig_params; }},
      {"fsdp", "fsdp_cpu_ram_efficient_loading", "no",
       [](const auto& s) { return !s.cpu_ram_efficient_loading; }},
      {"fsdp", "fsdp_activation_checkpointing", "yes",
       [](const auto& s) { return s.activation_checkpointing; }},
      {"fsdp", "fsdp_ignored_modules", "head.*",
       [](const auto& s) { return s.ignored_modules == "head.*"; }},
      {"fsdp", "mixed_precision", "bf16",
       [](const auto& s) { return s.mixed_precision == MixedPrecision::bf16; }},
      {"fsdp", "reduce_dtype", "fp32",
       [](const auto& s) { return s.reduce_precision == MixedPrecision::no; }},
      {"none", "reduce_dtype", "bf16",
       [](const auto& s) { return s.reduce_precision == MixedPrecision::bf16; }},
      {"none", "quantized_weights", "true", [](const auto& s) { return s.quantized_weights; }},
      {"none", "quantized_gradients", "true", [](const auto& s) { return s.quantized_gradients; }},
      {"none", "nan_policy", "raise",
       [](const auto& s) { return s.nan_policy == NanPolicy::raise; }},
      {"none", "stochastic_rounding", "true", [](const auto& s) { return s.stochastic_rounding; }},
      {"none", "save_async", "true", [](const auto& s) { return s.save_async; }},
      {"none", "memory_checkpoint_every", "7",
       [](const auto& s) { return s.memory_checkpoint_every == 7; }},
      {"none", "memory_checkpoint_rate", "8",
       [](const auto& s) { return s.memory_checkpoint_rate == 8; }},
      {"none", "gradient_accumulation_steps", "3",
       [](const auto& s) { return s.gradient_accumulation_steps == 3; }},
      {"none", "gradient_clipping", "0.5",
       [](const auto& s) { return s.gradient_clipping == 0.5; }},
      {"fsdp", "fsdp_backward_prefetch", "BACKWARD_POST",
       [](const auto& s) { return s.backward_prefetch == BackwardPrefetch::backward_post; }},
      {"fsdp", "fsdp_transformer_layer_cls_to_wrap", "Block, Head",
       [](const auto& s) {
         return s.transformer_layer_classes == std::vector<std::string>{"Block", "Head"};
       }},
      {"deepspeed", "offload_optimizer_device", "cpu",
       [](const auto& s) {
         return s.offload_optimizer == OffloadDevice::cpu && s.offload_param == OffloadDevice::none;
       }},
      {"deepspeed", "offload_param_device", "cpu",
       [](const auto& s) { return s.offload_param == OffloadDevice::cpu; }},
      {"deepspeed", "zero_hpz_partition_size", "2",
       [](const auto& s) { return s.hpz_partition_size == 2; }},
      {"deepspeed", "contiguous_gradients", "false",
       [](const auto& s) { return !s.contiguous_gradients; }},
      {"deepspeed", "round_robin_gradients", "true",
       [](const auto& s) { return s.round_robin_gradients; }},
      {"deepspeed", "overlap_comm", "false", [](const auto& s) { return !s.overlap_comm; }},
      {"deepspeed", "zero3_save_16bit_model", "true",
       [](const auto& s) { return s.save_16bit_model; }},
      {"deepspeed", "zero3_init_flag", "false", [](const auto& s) { return !s.zero3_init; }},
      {"deepspeed", "sub_group_size", "1e6",
       [](const auto& s) { return s.sub_group_size == 1'000'000; }},
      {"deepspeed", "offload_optimizer_buffer_count", "5",
       [](const auto& s) { return s.nvme.buffer_count == 5; }},
      {"deepspeed", "aio_block_size", "65536",
       [](const auto& s) { return s.nvme.block_size == 65536; }},
      {"deepspeed", "aio_queue_depth", "3", [](const auto& s) { return s.nvme.queue_depth == 3; }},
      {"deepspeed", "aio_intra_op_parallelism", "6",
       [](const auto& s) { return s.nvme.intra_op_parallelism == 6; }},
      {"deepspeed", "aio_single_submit", "true",
       [](const auto& s) { return s.nvme.single_submit; }},
      {"deepspeed", "aio_overlap_events", "false",
       [](const auto& s) { return !s.nvme.overlap_events; }},
      {"deepspeed", "stage3_prefetch_bucket_size", "0",
       [](const auto& s) {
         return s.prefetch_bucket_size == 0 && !s.forward_prefetch &&
                s.backward_prefetch == BackwardPrefetch::none;
       }},
      {"deepspeed", "stage3_param_persistence_threshold", "7",
       [](const auto& s) { return s.param_persistence_threshold == 7; }},
      {"deepspeed", "stage3_model_persistence_threshold", "8",
       [](const auto& s) { return s.model_persistence_threshold == 8; }},
      {"deepspeed", "stage3_max_live_parameters", "9",
       [](const auto& s) { return s.max_live_parameters == 9; }},
      {"deepspeed", "stage3_max_reuse_distance", "10",
       [](const auto& s) { return s.max_reuse_distance == 10; }},
      {"deepspeed", "reduce_bucket_size", "11",
       [](const auto& s) { return s.reduce_bucket_size == 11; }},
      {"deepspeed", "allgather_bucket_size", "12",
       [](const auto& s) { return s.allgather_bucket_size == 12; }},
      {"deepspeed", "zero_stage", "1",
       [](const auto& s) { return s.strategy == Strategy::shard_optimizer; }},
      {"deepspeed", "mixed_precision", "fp16",
       [](const auto& s) { return s.round_initial_weights; }},
      {"deepspeed", "fp16_loss_scale", "128",
       [](const auto& s) { return s.loss_scaling.static_scale == 128.0; }},
      {"deepspeed", "fp16_initial_scale_power", "12",
       [](const auto& s) { return s.loss_scaling.initial_scale_power == 12; }},
      {"deepspeed", "fp16_loss_scale_window", "20",
       [](const auto& s) { return s.loss_scaling.window == 20; }},
      {"deepspeed", "fp16_hysteresis", "1",
       [](const auto& s) { return s.loss_scaling.hysteresis == 1; }},
      {"deepspeed", "fp16_consecutive_hysteresis", "true",
       [](const auto& s) { return s.loss_scaling.consecutive_hysteresis; }},
      {"deepspeed", "fp16_min_loss_scale", "0.25",
       [](const auto& s) { return s.loss_scaling.min_scale == 0.25; }},
      {"deepspeed", "optimizer_type", "adamw",
       [](const auto& s) { return s.optimizer.type == "adamw"; }},
      {"deepspeed", "optimizer_lr", "3e-4", [](const auto& s) { return s.optimizer.lr == 3e-4; }},
      {"deepspeed", "optimizer_betas", "0.8,0.95",
       [](const auto& s) {
         return s.optimizer.betas == std::vector{0.8, 0.95};
       }},
      {"deepspeed", "optimizer_momentum", "0.9",
       [](const auto& s) { return s.optimizer.momentum == 0.9; }},
      {"deepspeed", "optimizer_values", "amsgrad=1",
       [](const auto& s) { return s.optimizer.values == "amsgrad=1"; }},
      {"deepspeed", "scheduler_values", "cycle_min_lr=1",
       [](const auto& s) { return s.schedule.values == "cycle_min_lr=1"; }},
      {"deepspeed", "scheduler_type", "WarmupLR",
       [](const auto& s) { return s.schedule.type == "WarmupLR"; }},
      {"deepspeed", "scheduler_warmup_num_steps", "10",
       [](const auto& s) { return s.schedule.warmup_num_steps == 10; }},
      {"deepspeed", "scheduler_warmup_type", "linear",
       [](const auto& s) { return s.schedule.warmup_type == "linear"; }},
      {"deepspeed", "deepspeed_unsupported", "amp",
       [](const auto& s) { return s.unsupported == "amp"; }},
  };
  for (const auto& [origin, key, value, holds] : cases) {
    CAPTURE(key);
    Settings settings;
    if (origin == "deepspeed") {
      settings.set("zero_stage"_key, "3", {Source::Kind::flag, "--zero_stage"});
    }
    CHECK_FALSE(holds(sharding_settings(settings, origin, kWorld)));
    settings.set_named(key, value, {Source::Kind::flag, "--" + key});
    CHECK(holds(sharding_settings(settings, origin, kWorld)));
  }
}

TEST_CASE("FSDP 2 shards by reshard_after_forward, FSDP 1 by its strategy") {
  struct Case {
    Environment environment;
    Strategy strategy;
    int reshard_size;
    StateDictType checkpoints;
  };
  const Environment grad_op = {{"FSDP_SHARDING_STRATEGY", "SHARD_GRAD_OP"}};
  for (const Case& each : {
           Case{{}, Strategy::full_shard, 0, StateDictType::full},
           Case{grad_op, Strategy::shard_grad_op, 0, StateDictType::full},
           Case{{{"FSDP_VERSION", "2"}}, Strategy::full_shard, 0, StateDictType::sharded},
           Case{{{"FSDP_VERSION", "2"}, {"FSDP_RESHARD_AFTER_FORWARD", "false"}},
                Strategy::shard_grad_op,
                0,
                StateDictType::sharded},
           Case{{{"FSDP_VERSION", "2"}, {"FSDP_RESHARD_AFTER_FORWARD", "4"}},
                Strategy::full_shard,
                4,
                StateDictType::sharded},
       }) {
    Environment environment = with_identity(each.environment);
    environment["ACC_MODE"] = "fsdp";
    const ShardingSettings found = settings_from_environment(environment).sharding;
    CHECK(found.strategy == each.strategy);
    CHECK(found.reshard_size == each.reshard_size);
    CHECK(found.state_dict_type == each.checkpoints);
  }
}

TEST_CASE("defaults of each mode") {
  const Settings plain;
  const auto fsdp = sharding_settings(plain, "fsdp", kWorld);
  const auto zero2 = sharding_settings(plain, "deepspeed", kWorld);
  CHECK(fsdp.loss_scaling == LossScaling{});  // PyTorch's scaler
  CHECK(zero2.loss_scaling ==
        LossScaling{
            .rule = LossScaleRule::deepspeed, .window = 1000, .hysteresis = 2, .min_scale = 1.0});
  CHECK(fsdp.cpu_ram_efficient_loading);
  CHECK_FALSE(zero2.cpu_ram_efficient_loading);
  CHECK_FALSE(zero2.zero3_init);
  CHECK(fsdp.limit_all_gathers);
  CHECK_FALSE(zero2.limit_all_gathers);
  CHECK_FALSE(zero2.round_initial_weights);  // no 16-bit weights
  // The stage3_* settings have an effect with stage 3 only.
  CHECK(zero2.param_persistence_threshold == 0);
  CHECK(zero2.max_live_parameters == ShardingSettings::kUnbounded);
}

TEST_CASE("an empty environment means one rank and no sharding") {
  CHECK(settings_from_environment({}) == RuntimeSettings{});
}

TEST_CASE("the identity comes from torchrun's variables") {
  const WorkerIdentity identity = settings_from_environment(with_identity({})).identity;
  CHECK(identity.rank == 5);
  CHECK(identity.local_rank == 1);
  CHECK(identity.world_size == 8);
  CHECK(identity.local_world_size == 4);
  CHECK(identity.node_rank == 1);
  CHECK(identity.num_nodes == 2);
  CHECK(identity.master_addr == "10.0.0.1");
  CHECK(identity.master_port == 29500);
}

TEST_CASE("machines may have different numbers of ranks if a variable gives them") {
  const auto sizes = [](const Environment& more) {  // one of 2 machines, with 4 of the 8 ranks
    return settings_from_environment(with_identity(more)).identity.local_world_sizes;
  };
  CHECK(sizes({}).empty());
  CHECK(sizes({{"ACC_LOCAL_WORLD_SIZES", "4,4"}}) == std::vector{4, 4});
  CHECK(sizes({{"WORLD_SIZE", "7"}, {"ACC_LOCAL_WORLD_SIZES", "3,4"}}) == std::vector{3, 4});
  CHECK_THROWS_WITH_AS(sizes({{"WORLD_SIZE", "7"}}), doctest::Contains("ACC_LOCAL_WORLD_SIZES"),
                       Error);
  for (const char* wrong : {"8", "4,3", "3,5", "4,4,0", "four,4"}) {
    CAPTURE(wrong);
    CHECK_THROWS_WITH_AS(sizes({{"ACC_LOCAL_WORLD_SIZES", wrong}}), doctest::Contains(wrong),
                         Error);
  }
}

TEST_CASE("a malformed job secret is refused without printing it") {
  const auto secret = [](const std::string& text) {
    return settings_from_environment(with_identity({{"ACC_JOB_SECRET", text}})).identity.job_secret;
  };
  const std::string good = "00112233445566778899aabbccddeeff";
  CHECK(secret(good) == good);
  CHECK(settings_from_environment(with_identity({})).identity.job_secret.empty());
  for (const std::string& wrong : {good + "0", good.substr(1), "G" + good.substr(1)}) {
    const std::string message = test::refusal([&] { return secret(wrong); });
    CHECK(test::contains(message, "ACC_JOB_SECRET must be 32 hexadecimal digits"));
    CHECK_FALSE(test::contains(message, wrong));
  }
}

TEST_CASE("variables that only the runtime reads") {
  const RuntimeSettings settings =
      settings_from_environment(with_identity({{"ACC_COLLECTIVE_TIMEOUT", "90"},
                                               {"ACC_SHM_GATHER", "copy"},
                                               {"ACC_COLLECTIVES", "staged"},
                                               {"ACC_NCCL_ZERO_SM", "1"},
                                               {"ACC_NCCL_SPLIT_SHARE", "1"},
                                               {"ACC_SHARE_GPUS", "1"},
                                               {"ACC_CHECK", "1"},
                                               {"ACC_DATA_RECORD", "samples"},
                                               {"ACC_DATA_ROUND", "3"},
                                               {"ACC_TRACE", "trace.json"},
                                               {"ACC_SNAPSHOT_MEMORY", "memory:other"},
                                               {"ACC_MEMBERSHIP", "page"},
                                               {"ACC_FLIGHT_RECORD", "record"}}));
  CHECK(settings.snapshot_memory == std::vector<std::string>{"memory", "other"});
  CHECK(settings.membership == "page");
  CHECK(settings.collective_timeout == std::chrono::seconds(90));
  CHECK(settings.copy_gathers);
  CHECK(settings.device_collectives == DeviceCollectives::staged);
  CHECK(settings.nccl == NcclOptions{.zero_sm = true, .split_share = true});
  CHECK(settings.share_gpus);
  CHECK(settings.check);
  CHECK(settings.data_record == RuntimeSettings::DataRecord{.folder = "samples", .round = 3});
  CHECK(settings.trace == "trace.json");
  CHECK(settings.flight_record == "record");
}

TEST_CASE("--debug checks accesses in every mode, unless ACC_CHECK says otherwise") {
  for (const std::string origin : {"none", "fsdp", "deepspeed"}) {
    CAPTURE(origin);
    Settings settings;
    CHECK_FALSE(
        settings_from_environment(settings_to_environment(settings, origin, Device::cpu)).check);
    settings.set("debug"_key, "true", {Source::Kind::flag, "--debug"});
    auto environment = settings_to_environment(settings, origin, Device::cpu);
    CHECK(settings_from_environment(environment).check);
    environment["ACC_CHECK"] = "0";
    CHECK_FALSE(settings_from_environment(environment).check);
  }
}

TEST_CASE("fp8 settings of a configuration reach a program that computes in fp8") {
  CHECK(fp8_settings({}) == Fp8Settings{});
  Settings settings;
  const auto set = [&](SettingKey key, const char* value) {
    settings.set(key, value, {Source::Kind::file, "c.yaml:3"});
  };
  set("mixed_precision"_key, "fp8");
  CHECK(fp8_settings(settings_to_environment(settings, "none", Device::cuda)) == Fp8Settings{});
  set("fp8_format"_key, "E4M3");
  set("fp8_margin"_key, "2");
  set("fp8_amax_history_len"_key, "16");
  set("fp8_amax_compute_algo"_key, "max");
  set("fp8_override_linear_precision"_key, "false,true,false");
  const auto environment = settings_to_environment(settings, "none", Device::cuda);
  CHECK(fp8_settings(environment) == Fp8Settings{.e5m2_gradients = false,
                                                 .margin = 2,
                                                 .amax_history = 16,
                                                 .amax_max = true,
                                                 .in_bf16 = {false, true, false}});
  CHECK(settings_from_environment(environment).sharding.mixed_precision == MixedPrecision::fp8);
}

TEST_CASE("fp8 settings without a meaning here are refused by name, all at once") {
  CHECK_THROWS_WITH_AS(
      fp8_settings({{"ACC_FP8_FORMAT", "E5M2"},
                    {"ACC_FP8_INTERVAL", "2"},
                    {"ACC_FP8_MARGIN", "65"},
                    {"ACC_FP8_AMAX_HISTORY_LEN", "0"},
                    {"ACC_FP8_OVERRIDE_LINEAR_PRECISION", "true"}}),
      "fp8_format must be HYBRID or E4M3 (weights and activations are never E5M2), "
      "got E5M2\n"
      "fp8_margin must be from -64 to 64, got 65\n"
      "fp8_amax_history_len must be from 1 to 1048576, got 0\n"
      "fp8_interval must be 1 (scales are computed in each micro-step), got 2\n"
      "fp8_override_linear_precision must be three booleans, got true",
      Error);
}

TEST_CASE("deterministic is passed on in every mode") {
  for (const std::string origin : {"none", "fsdp", "deepspeed"}) {
    Settings settings;
    CHECK_FALSE(settings_from_environment(settings_to_environment(settings, origin, Device::cpu))
                    .sharding.deterministic);
    settings.set("deterministic"_key, "true", {Source::Kind::flag, "--deterministic"});
    CHECK(settings_from_environment(settings_to_environment(settings, origin, Device::cpu))
              .sharding.deterministic);
  }
}

TEST_CASE("a worker's message names the file and line, or the flag, of a value") {
  Settings settings;
  settings.set("fsdp_transformer_layer_cls_to_wrap"_key, "Block",
               {Source::Kind::file, "my job.yaml:7"});
  settings.set("fsdp_sharding_strategy"_key, "FULL_SHARD",
               {Source::Kind::flag, "--fsdp_sharding_strategy"});
  settings.set("fsdp_version"_key, "1", {Source::Kind::environment, "FSDP_VERSION"});
  Environment environment = with_identity(settings_to_environment(settings, "fsdp", Device::cpu));
  const auto sources = settings_from_environment(environment).sources;
  CHECK(sources.at("fsdp_transformer_layer_cls_to_wrap") == "my job.yaml:7");
  CHECK(sources.at("fsdp_sharding_strategy") == "--fsdp_sharding_strategy");
  CHECK(sources.at("fsdp_version") == "FSDP_VERSION");

  environment["FSDP_SHARDING_STRATEGY"] = "SOME";
  CHECK_THROWS_WITH_AS(static_cast<void>(settings_from_environment(environment)),
                       doctest::Contains("--fsdp_sharding_strategy must be"), Error);
}

TEST_CASE("all faults of an environment are reported at once, with variable and value") {
  const std::string message = test::refusal([] {
    return settings_from_environment({{"RANK", "4"},
                                      {"WORLD_SIZE", "4"},
                                      {"MASTER_PORT", "http"},
                                      {"ACC_DEVICE", "tpu"},
                                      {"ACC_COLLECTIVE_TIMEOUT", "soon"},
                                      {"ACC_SHM_GATHER", "move"},
                                      {"ACC_COLLECTIVES", "mpi"},
                                      {"ACC_NCCL_ZERO_SM", "few"},
                                      {"ACC_NCCL_SPLIT_SHARE", "part"},
                                      {"ACC_SHARE_GPUS", "some"},
                                      {"ACC_CHECK", "maybe"},
                                      {"ACCELERATE_USE_FSDP", "true"},
                                      {"FSDP_SHARDING_STRATEGY", "SOME"}});
  });
  for (const std::string part :
       {"RANK must be an integer 0..3, got \"4\"", "MASTER_PORT must be", "\"http\"",
        "ACC_DEVICE must be cpu or cuda, got \"tpu\"", "ACC_COLLECTIVE_TIMEOUT must be", "\"soon\"",
        "ACC_SHM_GATHER must be share or copy, got \"move\"",
        "ACC_COLLECTIVES must be auto, nccl or staged, got \"mpi\"",
        "ACC_NCCL_ZERO_SM must be true or false, got \"few\"",
        "ACC_NCCL_SPLIT_SHARE must be true or false, got \"part\"",
        "ACC_SHARE_GPUS must be true or false, got \"some\"",
        "ACC_CHECK must be true or false, got \"maybe\"", "FSDP_SHARDING_STRATEGY must be",
        "\"SOME\""}) {
    CAPTURE(part);
    CHECK(message.find(part) != std::string::npos);
  }
}

}  // namespace
}  // namespace acc::settings
