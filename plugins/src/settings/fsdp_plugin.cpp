#include "acc/plugins/fsdp_plugin.hpp"

#include "acc/base/error.hpp"

#include <algorithm>

namespace acc::plugins {
namespace {

Strategy strategy_named(std::string_view name) {
  if (name == "SHARD_GRAD_OP")
    return Strategy::shard_grad_op;
  if (name == "NO_SHARD")
    return Strategy::no_shard;
  if (name == "HYBRID_SHARD")
    return Strategy::hybrid_shard;
  if (name == "HYBRID_SHARD_ZERO2")
    return Strategy::hybrid_shard_zero2;
  return Strategy::full_shard;
}

BackwardPrefetch prefetch_named(std::string_view name) {
  if (name == "BACKWARD_PRE")
    return BackwardPrefetch::backward_pre;
  if (name == "BACKWARD_POST")
    return BackwardPrefetch::backward_post;
  return BackwardPrefetch::none;
}

WrapPolicy wrap_policy_named(std::string_view name) {
  if (name == "TRANSFORMER_BASED_WRAP")
    return WrapPolicy::transformer_based;
  if (name == "SIZE_BASED_WRAP")
    return WrapPolicy::size_based;
  if (name == "NO_WRAP")
    return WrapPolicy::no_wrap;
  return WrapPolicy::unset;
}

StateDictType state_dict_named(std::string_view name, int fsdp_version) {
  if (name == "FULL_STATE_DICT")
    return StateDictType::full;
  if (name == "LOCAL_STATE_DICT")
    return StateDictType::local;
  if (name == "SHARDED_STATE_DICT")
    return StateDictType::sharded;
  return fsdp_version == 2 ? StateDictType::sharded : StateDictType::full;
}

std::string place(const Settings& settings, std::string_view key) {
  const Source& source = settings.source(key);
  if (source.kind == Source::Kind::flag || source.kind == Source::Kind::environment) {
    return source.where;
  }
  return source.where + ": " + std::string(key);
}

void read_reshard(const Settings& settings, FullyShardedDataParallelPlugin& plugin) {
  constexpr std::string_view kKey = "fsdp_reshard_after_forward";
  if (plugin.fsdp_version == 1) {
    return;  // there it names a strategy, which the launcher has moved to its own key
  }
  const std::string& text = settings.text(kKey);
  if (const auto flag = parse_boolean(text)) {
    plugin.reshard_after_forward = *flag;
    return;
  }
  const auto size = parse_integer(text);
  if (!size || *size < 2 || *size > 1'000'000) {
    throw Error(Errc::config, place(settings, kKey) +
                                  " must be true, false or a group size with FSDP 2, got \"" +
                                  text + "\"");
  }
  plugin.reshard_after_forward_size = static_cast<int>(*size);
}

void check(const Settings& settings, const FullyShardedDataParallelPlugin& plugin) {
  if (plugin.fsdp_version == 2 && plugin.state_dict_type == StateDictType::local) {
    throw Error(Errc::config, place(settings, "fsdp_state_dict_type") +
                                  ": FSDP 2 has no LOCAL_STATE_DICT; use SHARDED_STATE_DICT or "
                                  "FULL_STATE_DICT");
  }
  if (plugin.activation_checkpointing_offload &&
      (!plugin.activation_checkpointing || plugin.fsdp_version == 1)) {
    throw Error(Errc::config, place(settings, "fsdp_activation_checkpointing_offload") +
                                  " needs fsdp_activation_checkpointing: true and fsdp_version: 2");
  }
}

/// Ranks of a shard group as the parallelism config says; 0: it does not say.
int shard_size_asked(const FullyShardedDataParallelPlugin& plugin, int world_size) {
  const int shard = plugin.dp_shard_size;
  const int replicate = plugin.dp_replicate_size;
  if (shard <= 1 && replicate <= 1) {
    return 0;
  }
  const auto wrong = [&](const std::string& name, int value) {
    return Error(Errc::config, "parallelism_config_" + name + " " + std::to_string(value) +
                                   " does not divide the " + std::to_string(world_size) +
                                   " processes");
  };
  if (shard > 1 && world_size % shard != 0) {
    throw wrong("dp_shard_size", shard);
  }
  if (replicate > 1 && world_size % replicate != 0) {
    throw wrong("dp_replicate_size", replicate);
  }
  if (shard > 1 && replicate > 1 && std::int64_t{shard} * replicate != world_size) {
    throw Error(Errc::config, "parallelism_config_dp_replicate_size " + std::to_string(replicate) +
                                  " times parallelism_config_dp_shard_size " +
                                  std::to_string(shard) + " must be the " +
                                  std::to_string(world_size) + " processes");
  }
  return shard > 1 ? shard : world_size / replicate;
}

Strategy base_strategy(const FullyShardedDataParallelPlugin& plugin) {
  if (plugin.fsdp_version == 1) {
    return plugin.sharding_strategy;
  }
  return plugin.reshard_after_forward ? Strategy::full_shard : Strategy::shard_grad_op;
}

/// A shard group smaller than the world makes the hybrid form of a strategy.
void apply_groups(const FullyShardedDataParallelPlugin& plugin, int world_size,
                  ShardingSettings& result) {
  const int asked = shard_size_asked(plugin, world_size);
  const bool hybrid =
      result.strategy == Strategy::hybrid_shard || result.strategy == Strategy::hybrid_shard_zero2;
  if (asked == 0) {
    return;
  }
  if (result.strategy == Strategy::no_shard) {
    throw Error(Errc::config,
                "parallelism_config_dp_shard_size has no meaning with NO_SHARD; leave it out or "
                "choose HYBRID_SHARD");
  }
  if (!hybrid && asked == world_size) {
    return;
  }
  if (!hybrid) {
    result.strategy = result.strategy == Strategy::full_shard ? Strategy::hybrid_shard
                                                              : Strategy::hybrid_shard_zero2;
  }
  result.shard_size = asked;
}

void check_reshard_size(int reshard_size, int shard_size) {
  if (reshard_size != 0 && shard_size % reshard_size != 0) {
    throw Error(Errc::config, "fsdp_reshard_after_forward " + std::to_string(reshard_size) +
                                  " does not divide the shard group of " +
                                  std::to_string(shard_size) + " processes");
  }
}

}  // namespace

FullyShardedDataParallelPlugin FullyShardedDataParallelPlugin::from_settings(
    const Settings& settings) {
  FullyShardedDataParallelPlugin plugin;
  plugin.fsdp_version = static_cast<int>(settings.integer("fsdp_version"));
  plugin.sharding_strategy = strategy_named(settings.choice("fsdp_sharding_strategy"));
  read_reshard(settings, plugin);
  plugin.backward_prefetch = prefetch_named(settings.choice("fsdp_backward_prefetch"));
  plugin.cpu_offload = settings.boolean("fsdp_offload_params");
  plugin.state_dict_type =
      state_dict_named(settings.choice("fsdp_state_dict_type"), plugin.fsdp_version);
  plugin.auto_wrap_policy = wrap_policy_named(settings.choice("fsdp_auto_wrap_policy"));
  plugin.transformer_cls_names_to_wrap = settings.list("fsdp_transformer_layer_cls_to_wrap");
  plugin.min_num_params = settings.integer("fsdp_min_num_params");
  plugin.use_orig_params = settings.boolean("fsdp_use_orig_params");
  plugin.forward_prefetch = settings.boolean("fsdp_forward_prefetch");
  plugin.cpu_ram_efficient_loading = settings.boolean("fsdp_cpu_ram_efficient_loading");
  // Weights loaded on rank 0 alone must reach the others; Accelerate switches this on as well.
  plugin.sync_module_states =
      settings.boolean("fsdp_sync_module_states") || plugin.cpu_ram_efficient_loading;
  plugin.activation_checkpointing = settings.boolean("fsdp_activation_checkpointing");
  plugin.activation_checkpointing_offload =
      settings.boolean("fsdp_activation_checkpointing_offload");
  plugin.ignored_modules = settings.text("fsdp_ignored_modules");
  plugin.dp_replicate_size =
      static_cast<int>(settings.integer("parallelism_config_dp_replicate_size"));
  plugin.dp_shard_size = static_cast<int>(settings.integer("parallelism_config_dp_shard_size"));
  plugin.model_parallel_size = settings.integer("parallelism_config_tp_size") *
                               settings.integer("parallelism_config_cp_size") *
                               settings.integer("parallelism_config_sp_size");
  check(settings, plugin);
  return plugin;
}

ShardingSettings FullyShardedDataParallelPlugin::to_sharding_settings(int world_size) const {
  if (world_size % model_parallel_size != 0) {
    throw Error(Errc::config, "parallelism_config_tp_size x cp_size x sp_size = " +
                                  std::to_string(model_parallel_size) + " does not divide the " +
                                  std::to_string(world_size) + " processes");
  }
  world_size = static_cast<int>(world_size / model_parallel_size);
  ShardingSettings result;
  result.strategy = base_strategy(*this);
  apply_groups(*this, world_size, result);
  result.reshard_size = reshard_after_forward_size;
  check_reshard_size(result.reshard_size, result.shard_size > 0 ? result.shard_size : world_size);
  result.offload_param = cpu_offload ? OffloadDevice::cpu : OffloadDevice::none;
  result.offload_optimizer = result.offload_param;
  result.backward_prefetch = backward_prefetch;
  result.forward_prefetch = forward_prefetch;
  result.limit_all_gathers = limit_all_gathers;
  result.wrap_policy = auto_wrap_policy;
  result.transformer_layer_classes = transformer_cls_names_to_wrap;
  result.min_num_params = min_num_params;
  result.use_orig_params = use_orig_params;
  result.sync_module_states = sync_module_states;
  result.cpu_ram_efficient_loading = cpu_ram_efficient_loading;
  result.activation_checkpointing = activation_checkpointing;
  result.activation_checkpointing_offload = activation_checkpointing_offload;
  result.ignored_modules = ignored_modules;
  result.state_dict_type = state_dict_type;
  return result;
}

std::string settle_questionnaire_strategy(Settings& settings) {
  constexpr std::string_view kKey = "fsdp_reshard_after_forward";
  if (settings.integer("fsdp_version") != 1 || !settings.given(kKey)) {
    return "";
  }
  const std::string text = settings.text(kKey);
  const Source source = settings.source(kKey);
  const bool has_both = settings.given("fsdp_sharding_strategy");
  if (has_both && upper(text) == settings.choice("fsdp_sharding_strategy")) {
    return "";  // as `acclaunch config` writes it
  }
  if (parse_boolean(text) || has_both) {
    return source.where + ": fsdp_reshard_after_forward " + text +
           " has no effect with FSDP 1, which reads fsdp_sharding_strategy";
  }
  settings.set("fsdp_sharding_strategy", text, source);
  return source.where + ": fsdp_reshard_after_forward " + text +
         " is read as fsdp_sharding_strategy, its name with FSDP 1";
}

}  // namespace acc::plugins
