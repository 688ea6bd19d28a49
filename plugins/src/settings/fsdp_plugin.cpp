// SPDX-License-Identifier: Apache-2.0
#include "acc/settings/fsdp_plugin.hpp"

#include "acc/base/error.hpp"
#include "acc/settings/strategy.hpp"
#include "settings/fields.hpp"

namespace acc::settings {
namespace {

// Translation of FSDP's settings to ShardingSettings. FSDP 1 names a strategy. FSDP 2 has
// reshard_after_forward instead: true is FULL_SHARD, false is SHARD_GRAD_OP, and a number is a
// group size to reshard to. In both, a shard group that is smaller than the world (dp_shard_size or
// dp_replicate_size of the parallelism config) makes the strategy hybrid.

constexpr std::string_view kFsdp = "fsdp";
constexpr std::string_view kFsdpName = "FullyShardedDataParallelPlugin";
constexpr SettingKey kVersion = "fsdp_version"_key;
constexpr SettingKey kStrategy = "fsdp_sharding_strategy"_key;
constexpr SettingKey kReshard = "fsdp_reshard_after_forward"_key;
constexpr SettingKey kShardSize = "parallelism_config_dp_shard_size"_key;
constexpr SettingKey kReplicateSize = "parallelism_config_dp_replicate_size"_key;

/// Refuses values that one of the two versions of FSDP does not have.
void check(const Settings& settings, const FsdpPlugin& plugin) {
  const bool version_1 = plugin.fsdp_version == 1;
  if (!version_1 && plugin.state_dict_type == StateDictType::local) {
    throw Error(Errc::config, place_of(settings, "fsdp_state_dict_type"_key) +
                                  ": FSDP 2 has no LOCAL_STATE_DICT; use SHARDED_STATE_DICT or "
                                  "FULL_STATE_DICT");
  }
  if (plugin.activation_checkpointing_offload == true &&
      (plugin.activation_checkpointing == false || version_1)) {
    const SettingKey lacking = version_1 ? kVersion : "fsdp_activation_checkpointing"_key;
    throw Error(Errc::config, place_of(settings, "fsdp_activation_checkpointing_offload"_key) +
                                  " needs fsdp_activation_checkpointing: true and fsdp_version: 2,"
                                  " but there is " +
                                  named_value(settings, lacking));
  }
}

/// Returns the number of ranks per shard group that the parallelism config asks for; 0: none given.
int shard_size_asked(const Settings& settings, const FsdpPlugin& plugin, int world_size) {
  const int shard = plugin.dp_shard_size.value_or(1);
  const int replicate = plugin.dp_replicate_size.value_or(1);
  const std::string processes = " the " + std::to_string(world_size) + " processes";
  for (const SettingKey key : {kShardSize, kReplicateSize}) {
    if (world_size % settings.integer(key) != 0) {
      throw Error(Errc::config, key.text() + " " + settings.text(key) + " does not divide" +
                                    processes + " (" + describe(settings.source(key)) + ")");
    }
  }
  if (shard > 1 && replicate > 1 && std::int64_t{shard} * replicate != world_size) {
    throw Error(Errc::config, named_value(settings, kReplicateSize) + " times " +
                                  named_value(settings, kShardSize) + " must be" + processes);
  }
  return shard > 1 ? shard : replicate > 1 ? world_size / replicate : 0;
}

Strategy base_strategy(const FsdpPlugin& plugin) {
  if (plugin.fsdp_version == 1) {
    return plugin.sharding_strategy.value_or(Strategy::full_shard);
  }
  return plugin.reshard_after_forward == std::variant<bool, int>(false) ? Strategy::shard_grad_op
                                                                        : Strategy::full_shard;
}

/// Replaces a strategy by its hybrid form if the shard group is smaller than the world.
void apply_groups(const Settings& settings, const FsdpPlugin& plugin, int world_size,
                  ShardingSettings& result) {
  const int asked = shard_size_asked(settings, plugin, world_size);
  const bool hybrid = switches(result.strategy).replicate;
  if (asked == 0) {
    return;
  }
  if (result.strategy == Strategy::no_shard) {
    const SettingKey key = plugin.dp_shard_size.value_or(1) > 1 ? kShardSize : kReplicateSize;
    throw Error(Errc::config, named_value(settings, key) + " has no meaning with " +
                                  named_value(settings, kStrategy) +
                                  "; leave it out or choose HYBRID_SHARD");
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

/// Sets reshard_size from an integer reshard_after_forward of FSDP 2.
void apply_reshard_size(const Settings& settings, const FsdpPlugin& plugin, int world_size,
                        ShardingSettings& result) {
  const auto& asked = plugin.reshard_after_forward;
  const int* size = plugin.fsdp_version == 2 && asked ? std::get_if<int>(&*asked) : nullptr;
  if (size == nullptr) {
    return;
  }
  result.reshard_size = *size;
  const int group = result.shard_size > 0 ? result.shard_size : world_size;
  if (group % *size != 0) {
    throw Error(Errc::config, named_value(settings, kReshard) +
                                  " does not divide the shard group of " + std::to_string(group) +
                                  " processes");
  }
}

/// Returns the number of data-parallel ranks. The ranks of one tensor, context or sequence parallel
/// group hold one model together, so they count once.
int data_parallel_size(const Settings& settings, int world_size) {
  const std::int64_t model = settings.integer("parallelism_config_tp_size"_key) *
                             settings.integer("parallelism_config_cp_size"_key) *
                             settings.integer("parallelism_config_sp_size"_key);
  if (world_size % model != 0) {
    throw Error(Errc::config,
                "parallelism_config_tp_size x cp_size x sp_size = " + std::to_string(model) +
                    " does not divide the " + std::to_string(world_size) + " processes");
  }
  return static_cast<int>(world_size / model);
}

}  // namespace

std::variant<bool, int> reshard_value(const Settings& settings, SettingKey key) {
  const std::string& text = settings.text(key);
  const auto size = parse_integer(text);
  if (const auto flag = parse_boolean(text)) {
    return *flag;
  }
  if (size && *size >= 2 && *size <= 1'000'000) {
    return static_cast<int>(*size);
  }
  throw Error(Errc::config, place_of(settings, key) +
                                " must be true, false or a group size with FSDP 2, got \"" + text +
                                "\"");
}

void FsdpPlugin::set(std::string_view field, std::string_view value) {
  set_field(*this, kFsdp, kFsdpName, field, value);
}

ProgramSettings FsdpPlugin::program_settings() const {
  return {std::string(kFsdpName), std::string(kFsdp), set_fields(*this, kFsdp)};
}

FsdpPlugin FsdpPlugin::from_settings(const Settings& settings) {
  FsdpPlugin plugin;
  Settings words = settings;
  if (is_fsdp1(settings)) {
    // With FSDP 1 the key may hold a strategy name, which is no boolean and no size. The launcher
    // has already moved the name to fsdp_sharding_strategy (settle_questionnaire_strategy).
    words.reset(kReshard);
  }
  read_fields(words, kFsdp, plugin);
  // Weights that only rank 0 loads must be sent to the other ranks. Accelerate switches
  // sync_module_states on in the same case.
  plugin.sync_module_states =
      plugin.sync_module_states == true || plugin.cpu_ram_efficient_loading == true;
  plugin.state_dict_type = plugin.state_dict_type.value_or(
      plugin.fsdp_version == 2 ? StateDictType::sharded : StateDictType::full);
  check(settings, plugin);
  return plugin;
}

bool is_fsdp1(const Settings& settings) {
  return settings.integer(kVersion) == 1;
}

SettingKey fsdp_strategy_key(int version) {
  return version == 1 ? kStrategy : kReshard;
}

void check_fsdp(const Settings& settings) {
  const int other_version = is_fsdp1(settings) ? 2 : 1;
  const SettingKey other = fsdp_strategy_key(other_version);
  if (settings.source(other).kind == Source::Kind::program) {
    refuse(settings, other, "is a setting of FSDP " + std::to_string(other_version), kVersion);
  }
}

void add_fsdp(const Settings& settings, int world_size, ShardingSettings& result) {
  const FsdpPlugin plugin = FsdpPlugin::from_settings(settings);
  const int ranks = data_parallel_size(settings, world_size);
  result.strategy = base_strategy(plugin);
  apply_groups(settings, plugin, ranks, result);
  apply_reshard_size(settings, plugin, ranks, result);
  result.offload_param = plugin.cpu_offload == true ? OffloadDevice::cpu : OffloadDevice::none;
  result.offload_optimizer = result.offload_param;
  result.sync_module_states = plugin.sync_module_states.value();
  result.state_dict_type = plugin.state_dict_type.value();
}

std::string settle_questionnaire_strategy(Settings& settings) {
  if (!is_fsdp1(settings) || !settings.given(kReshard)) {
    return "";
  }
  const std::string text = settings.text(kReshard);
  const Source source = settings.source(kReshard);
  const bool has_both = settings.given(kStrategy);
  if (has_both && upper(text) == settings.choice(kStrategy)) {
    return "";  // `acclaunch config` writes both keys with the same strategy
  }
  if (parse_boolean(text) || has_both) {
    return source.where + ": fsdp_reshard_after_forward " + text +
           " has no effect with FSDP 1, which reads fsdp_sharding_strategy";
  }
  settings.set(kStrategy, text, source);
  return source.where + ": fsdp_reshard_after_forward " + text +
         " is read as fsdp_sharding_strategy, its name with FSDP 1";
}

}  // namespace acc::settings
