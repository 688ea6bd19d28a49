// SPDX-License-Identifier: Apache-2.0
#include "acc/plugins/deepspeed_plugin.hpp"

#include "acc/base/error.hpp"
#include "settings/plugin_fields.hpp"

namespace acc::plugins {
namespace {

// Translation of DeepSpeed's settings to ShardingSettings. The ZeRO stage gives the strategy; the
// other settings bound by numbers of elements what FSDP bounds by units.

constexpr std::string_view kDeepSpeedName = "DeepSpeedPlugin";

constexpr auto kDeepSpeedFields = std::tuple_cat(
    kTrainingFields,
    std::tuple{
        Field{"zero_stage", "zero_stage"_key, &DeepSpeedPlugin::zero_stage},
        Field{"offload_optimizer_device", "offload_optimizer_device"_key,
              &DeepSpeedPlugin::offload_optimizer_device},
        Field{"offload_param_device", "offload_param_device"_key,
              &DeepSpeedPlugin::offload_param_device},
        Field{"offload_optimizer_nvme_path", "offload_optimizer_nvme_path"_key,
              &DeepSpeedPlugin::offload_optimizer_nvme_path},
        Field{"offload_param_nvme_path", "offload_param_nvme_path"_key,
              &DeepSpeedPlugin::offload_param_nvme_path},
        Field{"zero3_init_flag", "zero3_init_flag"_key, &DeepSpeedPlugin::zero3_init_flag},
        Field{"zero3_save_16bit_model", "zero3_save_16bit_model"_key,
              &DeepSpeedPlugin::zero3_save_16bit_model},
        Field{"zero_hpz_partition_size", "zero_hpz_partition_size"_key,
              &DeepSpeedPlugin::zero_hpz_partition_size},
        Field{"reduce_bucket_size", "reduce_bucket_size"_key, &DeepSpeedPlugin::reduce_bucket_size},
        Field{"allgather_bucket_size", "allgather_bucket_size"_key,
              &DeepSpeedPlugin::allgather_bucket_size},
        Field{"stage3_prefetch_bucket_size", "stage3_prefetch_bucket_size"_key,
              &DeepSpeedPlugin::stage3_prefetch_bucket_size},
        Field{"stage3_param_persistence_threshold", "stage3_param_persistence_threshold"_key,
              &DeepSpeedPlugin::stage3_param_persistence_threshold},
        Field{"stage3_model_persistence_threshold", "stage3_model_persistence_threshold"_key,
              &DeepSpeedPlugin::stage3_model_persistence_threshold},
        Field{"stage3_max_live_parameters", "stage3_max_live_parameters"_key,
              &DeepSpeedPlugin::stage3_max_live_parameters},
        Field{"stage3_max_reuse_distance", "stage3_max_reuse_distance"_key,
              &DeepSpeedPlugin::stage3_max_reuse_distance},
        Field{"sub_group_size", "sub_group_size"_key, &DeepSpeedPlugin::sub_group_size},
        Field{"overlap_comm", "overlap_comm"_key, &DeepSpeedPlugin::overlap_comm},
        Field{"contiguous_gradients", "contiguous_gradients"_key,
              &DeepSpeedPlugin::contiguous_gradients},
        Field{"round_robin_gradients", "round_robin_gradients"_key,
              &DeepSpeedPlugin::round_robin_gradients},
        Field{"loss_scale", "fp16_loss_scale"_key, &DeepSpeedPlugin::loss_scale},
        Field{"initial_scale_power", "fp16_initial_scale_power"_key,
              &DeepSpeedPlugin::initial_scale_power},
        Field{"loss_scale_window", "fp16_loss_scale_window"_key,
              &DeepSpeedPlugin::loss_scale_window},
        Field{"hysteresis", "fp16_hysteresis"_key, &DeepSpeedPlugin::hysteresis},
        Field{"consecutive_hysteresis", "fp16_consecutive_hysteresis"_key,
              &DeepSpeedPlugin::consecutive_hysteresis},
        Field{"min_loss_scale", "fp16_min_loss_scale"_key, &DeepSpeedPlugin::min_loss_scale}});

Strategy strategy_of_stage(int stage) {
  switch (stage) {
    case 0: return Strategy::no_shard;
    case 1: return Strategy::shard_optimizer;
    case 2: return Strategy::shard_grad_op;
    default: return Strategy::full_shard;
  }
}

/// Refuses offload to NVMe without a folder.
void check_nvme(const Settings& settings, SettingKey device, SettingKey path) {
  if (settings.choice(device) == "nvme" && (!settings.has(path) || settings.text(path) == "none")) {
    throw Error(Errc::config, named_value(settings, device) + " needs " + path.text() +
                                  ", the folder to store it in");
  }
}

/// Sets the bounds of gathering. DeepSpeed's stage 3 records the order in which parameters are used
/// and prefetches and frees along it by numbers of elements; FSDP's bound by units
/// (limit_all_gathers) is off.
void add_gathering(const DeepSpeedPlugin& plugin, ShardingSettings& result) {
  result.limit_all_gathers = false;
  if (plugin.zero_stage != 3) {
    return;
  }
  result.prefetch_bucket_size = plugin.stage3_prefetch_bucket_size.value();
  if (result.prefetch_bucket_size > 0) {
    result.backward_prefetch = BackwardPrefetch::backward_pre;
    result.forward_prefetch = true;
  }
  result.param_persistence_threshold = plugin.stage3_param_persistence_threshold.value();
  result.model_persistence_threshold =
      plugin.stage3_model_persistence_threshold.value_or(ShardingSettings::kUnbounded);
  result.max_live_parameters = plugin.stage3_max_live_parameters.value();
  result.max_reuse_distance = plugin.stage3_max_reuse_distance.value();
}

void add_offload(const DeepSpeedPlugin& plugin, ShardingSettings& result) {
  result.offload_param = plugin.offload_param_device.value();
  result.offload_optimizer = plugin.offload_optimizer_device.value();
  result.offload_param_nvme_path = plugin.offload_param_nvme_path.value_or("");
  result.offload_optimizer_nvme_path = plugin.offload_optimizer_nvme_path.value_or("");
}

/// Returns loss scaling by DeepSpeed's rule. It has an effect with fp16 only.
LossScaling loss_scaling_of(const DeepSpeedPlugin& plugin) {
  return {.rule = LossScaleRule::deepspeed,
          .static_scale = plugin.loss_scale.value(),
          .initial_scale_power = plugin.initial_scale_power.value(),
          .window = plugin.loss_scale_window.value(),
          .hysteresis = plugin.hysteresis.value(),
          .consecutive_hysteresis = plugin.consecutive_hysteresis.value(),
          .min_scale = plugin.min_loss_scale.value()};
}

template <typename Value>
void read_if_given(const Settings& settings, SettingKey key, std::optional<Value>& value) {
  if (settings.has(key)) {
    read(settings, key, value.emplace());
  }
}

/// Returns the optimizer of the DeepSpeed file. Used only if the program asks for the file's
/// optimizer.
OptimizerChoice optimizer_of(const Settings& settings) {
  OptimizerChoice choice;
  choice.type = settings.text("optimizer_type"_key);
  read_if_given(settings, "optimizer_lr"_key, choice.lr);
  read_if_given(settings, "optimizer_eps"_key, choice.eps);
  read_if_given(settings, "optimizer_weight_decay"_key, choice.weight_decay);
  read_if_given(settings, "optimizer_momentum"_key, choice.momentum);
  for (const std::string& beta : settings.list("optimizer_betas"_key)) {
    choice.betas.push_back(parse_real(beta).value_or(-1.0));
  }
  for (const double beta : choice.betas) {
    if (choice.betas.size() != 2 || beta < 0.0 || beta >= 1.0) {
      throw Error(Errc::config, place_of(settings, "optimizer_betas"_key) +
                                    " must be two numbers of at least 0 and below 1, got \"" +
                                    settings.text("optimizer_betas"_key) + "\"");
    }
  }
  return choice;
}

/// Returns the learning rate schedule of the DeepSpeed file.
ScheduleChoice schedule_of(const Settings& settings) {
  ScheduleChoice choice;
  choice.type = settings.text("scheduler_type"_key);
  read_if_given(settings, "scheduler_warmup_min_lr"_key, choice.warmup_min_lr);
  read_if_given(settings, "scheduler_warmup_max_lr"_key, choice.warmup_max_lr);
  read_if_given(settings, "scheduler_warmup_num_steps"_key, choice.warmup_num_steps);
  choice.warmup_type = settings.choice("scheduler_warmup_type"_key);
  read_if_given(settings, "scheduler_total_num_steps"_key, choice.total_num_steps);
  read_if_given(settings, "scheduler_warmup_min_ratio"_key, choice.warmup_min_ratio);
  read_if_given(settings, "scheduler_cos_min_ratio"_key, choice.cos_min_ratio);
  return choice;
}

}  // namespace

void DeepSpeedPlugin::set(std::string_view field, std::string_view value) {
  set_field(*this, kDeepSpeedFields, kDeepSpeedName, field, value);
}

ProgramSettings DeepSpeedPlugin::program_settings() const {
  return {std::string(kDeepSpeedName), "deepspeed", set_fields(*this, kDeepSpeedFields)};
}

DeepSpeedPlugin DeepSpeedPlugin::from_settings(const Settings& settings) {
  DeepSpeedPlugin plugin;
  read_fields(settings, kDeepSpeedFields, plugin);
  plugin.zero3_init_flag = plugin.zero3_init_flag.value_or(plugin.zero_stage == 3);
  plugin.overlap_comm = plugin.overlap_comm.value_or(plugin.zero_stage == 3);
  check_nvme(settings, "offload_optimizer_device"_key, "offload_optimizer_nvme_path"_key);
  check_nvme(settings, "offload_param_device"_key, "offload_param_nvme_path"_key);
  return plugin;
}

ShardingSettings deepspeed_sharding_settings(const Settings& settings, int world_size) {
  const DeepSpeedPlugin plugin = DeepSpeedPlugin::from_settings(settings);
  ShardingSettings result;
  result.strategy = strategy_of_stage(plugin.zero_stage.value());
  if (plugin.zero_stage == 3 && world_size > 1) {  // other stages keep the weights complete
    result.hpz_partition_size = plugin.zero_hpz_partition_size.value();
  }
  if (world_size % result.hpz_partition_size != 0) {
    throw Error(Errc::config, named_value(settings, "zero_hpz_partition_size"_key) +
                                  " does not divide the " + std::to_string(world_size) +
                                  " processes");
  }
  add_offload(plugin, result);
  add_gathering(plugin, result);
  // Only FSDP has this way of loading. Without it each rank reads its own shard.
  result.cpu_ram_efficient_loading = false;
  result.zero3_init = plugin.zero3_init_flag.value();
  result.save_16bit_model = plugin.zero3_save_16bit_model.value();
  result.reduce_bucket_size = plugin.reduce_bucket_size.value();
  result.allgather_bucket_size = plugin.allgather_bucket_size.value();
  result.sub_group_size = plugin.sub_group_size.value();
  result.overlap_comm = plugin.overlap_comm.value();
  result.contiguous_gradients = plugin.contiguous_gradients.value();
  result.round_robin_gradients = plugin.round_robin_gradients.value();
  result.loss_scaling = loss_scaling_of(plugin);
  result.round_initial_weights = plugin.mixed_precision != MixedPrecision::no;
  result.optimizer = optimizer_of(settings);
  result.schedule = schedule_of(settings);
  result.unsupported = settings.text("deepspeed_unsupported"_key);
  return result;
}

}  // namespace acc::plugins
