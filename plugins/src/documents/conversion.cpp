// SPDX-License-Identifier: Apache-2.0
#include "documents/conversion.hpp"

#include "acc/base/error.hpp"
#include "acc/settings/environment.hpp"
#include "acc/settings/fsdp_plugin.hpp"
#include "acc/settings/setting_rows.hpp"
#include "acc/settings/strategy.hpp"

#include <algorithm>

namespace acc::documents {

using settings::operator""_key;
namespace {

// Reading of a configuration to convert, and the nearest sharding on the other side. Both sides
// become ShardingSettings, the form in which the runtime gets them, so that a conversion keeps what
// the workers would do instead of translating keys.

int integer(const settings::Settings& settings, settings::SettingKey key) {
  return static_cast<int>(settings.integer(key));
}

/// Sets world_size and gpus_per_machine, each from the other if only one is known.
void read_sizes(int gpus_per_machine, ConversionSource& source) {
  const settings::Settings& settings = source.settings;
  const int machines = integer(settings, "num_machines"_key);
  source.world_size = integer(settings, "num_processes"_key);
  source.gpus_per_machine = gpus_per_machine;
  if (gpus_per_machine == 0 && source.world_size % machines == 0) {
    source.gpus_per_machine = source.world_size / machines;
  }
  if (source.world_size == 0) {
    source.world_size = source.gpus_per_machine * machines;
  }
}

void read_fsdp_sharding(ConversionSource& source) {
  settings::Settings& settings = source.settings;
  if (std::string notice = settings::settle_questionnaire_strategy(settings); !notice.empty()) {
    source.notices.push_back(std::move(notice));
  }
  const auto plugin = settings::FullyShardedDataParallelPlugin::from_settings(settings);
  const int shard = plugin.dp_shard_size.value_or(1);
  const int replicate = plugin.dp_replicate_size.value_or(1);
  const bool asks_size = shard > 1 || replicate > 1;
  source.form = settings::is_fsdp1(settings) ? ConfigForm::fsdp : ConfigForm::fsdp2;
  const bool by_machine = source.form == ConfigForm::fsdp &&
                          settings::switches(plugin.sharding_strategy.value()).replicate &&
                          !asks_size;
  if (by_machine && source.gpus_per_machine == 0) {
    const settings::SettingKey strategy = strategy_key(source.form);
    throw Error(Errc::config, settings.source(strategy).where + ": " + strategy.text() + " " +
                                  settings.text(strategy) +
                                  " depends on the number of GPUs per machine; give "
                                  "--gpus_per_machine");
  }
  int world_size = source.world_size;
  // The translation checks that group sizes divide the world size. If the file does not give one,
  // take the smallest that fits the groups.
  if (world_size == 0) {
    const int* reshard = std::get_if<int>(&plugin.reshard_after_forward.value());
    world_size = std::max({1, shard * replicate, reshard != nullptr ? *reshard : 1});
  }
  source.sharding = settings::sharding_settings(settings, "fsdp", world_size);
  if (settings::switches(source.sharding.strategy).replicate) {
    source.shard_size =
        source.sharding.shard_size > 0 ? source.sharding.shard_size : source.gpus_per_machine;
  }
}

void read_deepspeed_sharding(ConversionSource& source) {
  const int hpz = integer(source.settings, "zero_hpz_partition_size"_key);
  const int world_size = source.world_size > 0 ? source.world_size : hpz;
  source.sharding = settings::sharding_settings(source.settings, "deepspeed", world_size);
  source.shard_size =
      source.sharding.hpz_partition_size > 1 ? source.sharding.hpz_partition_size : 0;
}

void read_deepspeed_document(const Document& document, ConversionSource& source) {
  source.deepspeed_file = apply_deepspeed_json(
      document, integer(source.settings, "num_processes"_key), source.settings);
}

void read_accelerate_document(const ConversionInput& input, ConversionSource& source) {
  AccelerateConfig config = apply_accelerate_config(input.document, source.settings);
  source.notices = std::move(config.notices);
  if (config.distributed_type != "FSDP" && config.distributed_type != "DEEPSPEED") {
    throw Error(Errc::not_supported,
                input.document.path.string() + ": distributed_type is " + config.distributed_type +
                    ", neither FSDP nor DEEPSPEED: there is nothing to convert");
  }
  source.form = config.distributed_type == "FSDP" ? ConfigForm::fsdp : ConfigForm::deepspeed;
  if (!is_fsdp(source.form) && input.deepspeed_file) {
    read_deepspeed_document(*input.deepspeed_file, source);
  }
}

}  // namespace

bool is_fsdp(ConfigForm form) noexcept {
  return form == ConfigForm::fsdp || form == ConfigForm::fsdp2;
}

settings::SettingKey strategy_key(ConfigForm form) {
  return is_fsdp(form) ? settings::fsdp_strategy_key(form == ConfigForm::fsdp ? 1 : 2)
                       : "zero_stage"_key;
}

ConversionSource read_conversion_source(const ConversionInput& input) {
  ConversionSource source;
  if (is_deepspeed_json(input.document)) {
    source.form = ConfigForm::deepspeed_json;
    read_deepspeed_document(input.document, source);
  } else {
    read_accelerate_document(input, source);
  }
  read_sizes(input.gpus_per_machine, source);
  (is_fsdp(source.form) ? read_fsdp_sharding : read_deepspeed_sharding)(source);
  return source;
}

settings::ShardingSettings fsdp_sharding(const ConversionSource& source) {
  settings::ShardingSettings result = source.sharding;
  if (is_fsdp(source.form)) {
    return result;
  }
  // FSDP has no ZeRO-1, and offloads parameters and optimizer state together or not at all.
  if (result.strategy == settings::Strategy::shard_optimizer) {
    result.strategy = settings::Strategy::shard_grad_op;
  }
  if (source.shard_size > 0) {
    result.strategy = settings::Strategy::hybrid_shard;
  }
  const bool offloads = result.offload_param != settings::OffloadDevice::none ||
                        result.offload_optimizer != settings::OffloadDevice::none;
  result.offload_param = offloads ? settings::OffloadDevice::cpu : settings::OffloadDevice::none;
  result.offload_optimizer = result.offload_param;
  result.cpu_ram_efficient_loading = result.zero3_init;
  result.wrap_policy = settings::WrapPolicy::transformer_based;
  result.state_dict_type =
      result.save_16bit_model ? settings::StateDictType::full : settings::StateDictType::sharded;
  return result;
}

settings::ShardingSettings deepspeed_sharding(const ConversionSource& source) {
  settings::ShardingSettings result = source.sharding;
  if (!is_fsdp(source.form)) {
    return result;
  }
  if (result.strategy == settings::Strategy::hybrid_shard) {
    result.hpz_partition_size = source.shard_size;
    result.strategy = settings::Strategy::full_shard;
  } else if (result.strategy ==
             settings::Strategy::hybrid_shard_zero2) {  // MiCS is gone from DeepSpeed
    result.strategy = settings::Strategy::shard_grad_op;
  } else if (result.reshard_size > 0) {
    result.hpz_partition_size = result.reshard_size;
  }
  // DeepSpeed offloads parameters, creates them sharded and gathers 16-bit weights only in stage 3.
  const bool stage_3 = result.strategy == settings::Strategy::full_shard;
  if (!stage_3) {
    result.offload_param = settings::OffloadDevice::none;
  }
  if (result.strategy == settings::Strategy::no_shard) {
    result.offload_optimizer = settings::OffloadDevice::none;
  }
  result.zero3_init = result.cpu_ram_efficient_loading && stage_3;
  result.save_16bit_model = stage_3 && result.state_dict_type == settings::StateDictType::full;
  return result;
}

}  // namespace acc::documents
