#include "acc/plugins/deepspeed_plugin.hpp"

#include "acc/base/error.hpp"

namespace acc::plugins {
namespace {

OffloadDevice device_named(std::string_view name) {
  if (name == "cpu")
    return OffloadDevice::cpu;
  if (name == "nvme")
    return OffloadDevice::nvme;
  return OffloadDevice::none;
}

Strategy strategy_of_stage(int stage) {
  switch (stage) {
    case 0: return Strategy::no_shard;
    case 1: return Strategy::shard_optimizer;
    case 2: return Strategy::shard_grad_op;
    default: return Strategy::full_shard;
  }
}

void check_nvme(OffloadDevice device, const std::string& path, const std::string& what) {
  if (device == OffloadDevice::nvme && (path.empty() || path == "none")) {
    throw Error(Errc::config, "offload_" + what + "_device nvme needs offload_" + what +
                                  "_nvme_path, the folder to keep it in");
  }
}

}  // namespace

DeepSpeedPlugin DeepSpeedPlugin::from_settings(const Settings& settings) {
  DeepSpeedPlugin plugin;
  plugin.zero_stage = static_cast<int>(settings.integer("zero_stage"));
  plugin.offload_optimizer_device = device_named(settings.choice("offload_optimizer_device"));
  plugin.offload_param_device = device_named(settings.choice("offload_param_device"));
  plugin.offload_optimizer_nvme_path = settings.text("offload_optimizer_nvme_path");
  plugin.offload_param_nvme_path = settings.text("offload_param_nvme_path");
  plugin.zero3_init_flag = settings.has("zero3_init_flag") ? settings.boolean("zero3_init_flag")
                                                           : plugin.zero_stage == 3;
  plugin.zero3_save_16bit_model = settings.boolean("zero3_save_16bit_model");
  plugin.zero_hpz_partition_size = static_cast<int>(settings.integer("zero_hpz_partition_size"));
  plugin.reduce_bucket_size = settings.integer("reduce_bucket_size");
  plugin.allgather_bucket_size = settings.integer("allgather_bucket_size");
  plugin.stage3_prefetch_bucket_size = settings.integer("stage3_prefetch_bucket_size");
  plugin.stage3_param_persistence_threshold =
      settings.integer("stage3_param_persistence_threshold");
  plugin.stage3_max_live_parameters = settings.integer("stage3_max_live_parameters");
  plugin.stage3_max_reuse_distance = settings.integer("stage3_max_reuse_distance");
  plugin.sub_group_size = settings.integer("sub_group_size");
  if (settings.has("overlap_comm")) {
    plugin.overlap_comm = settings.boolean("overlap_comm");
  }
  plugin.contiguous_gradients = settings.boolean("contiguous_gradients");
  plugin.round_robin_gradients = settings.boolean("round_robin_gradients");
  check_nvme(plugin.offload_optimizer_device, plugin.offload_optimizer_nvme_path, "optimizer");
  check_nvme(plugin.offload_param_device, plugin.offload_param_nvme_path, "param");
  return plugin;
}

ShardingSettings DeepSpeedPlugin::to_sharding_settings(int world_size) const {
  ShardingSettings result;
  result.strategy = strategy_of_stage(zero_stage);
  if (zero_stage == 3 && world_size > 1) {  // weights that are whole need no secondary copy
    result.hpz_partition_size = zero_hpz_partition_size;
  }
  if (world_size % result.hpz_partition_size != 0) {
    throw Error(Errc::config, "zero_hpz_partition_size " + std::to_string(zero_hpz_partition_size) +
                                  " does not divide the " + std::to_string(world_size) +
                                  " processes");
  }
  result.offload_param = offload_param_device;
  result.offload_optimizer = offload_optimizer_device;
  result.offload_param_nvme_path = offload_param_nvme_path;
  result.offload_optimizer_nvme_path = offload_optimizer_nvme_path;
  result.cpu_ram_efficient_loading = zero3_init_flag;
  result.save_16bit_model = zero3_save_16bit_model;
  result.reduce_bucket_size = reduce_bucket_size;
  result.allgather_bucket_size = allgather_bucket_size;
  result.prefetch_bucket_size = stage3_prefetch_bucket_size;
  if (zero_stage == 3 &&
      stage3_prefetch_bucket_size > 0) {  // it fetches along its trace, both ways
    result.backward_prefetch = BackwardPrefetch::backward_pre;
    result.forward_prefetch = true;
  }
  result.param_persistence_threshold = stage3_param_persistence_threshold;
  result.max_live_parameters = stage3_max_live_parameters;
  result.max_reuse_distance = stage3_max_reuse_distance;
  result.sub_group_size = sub_group_size;
  result.overlap_comm = overlap_comm.value_or(zero_stage == 3);
  result.contiguous_gradients = contiguous_gradients;
  result.round_robin_gradients = round_robin_gradients;
  return result;
}

}  // namespace acc::plugins
