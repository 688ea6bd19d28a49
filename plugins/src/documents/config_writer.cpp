// SPDX-License-Identifier: Apache-2.0
#include "documents/config_writer.hpp"

#include "acc/settings/setting_rows.hpp"
#include "acc/settings/strategy.hpp"
#include "documents/conversion.hpp"

namespace acc::documents {

using settings::operator""_key;  // NOLINT(misc-unused-using-decls): it sees no use in literals
namespace {

/// Returns a value of an enumeration in the spelling of the settings.
Node word_node(auto value) {
  return Node::string(std::string(settings::word_of(value).setting));
}

/// Returns the ZeRO stage that is nearest to a strategy.
int stage_of(settings::Strategy strategy) {
  const settings::StrategySwitches on = settings::switches(strategy);
  return on.reshard_after_forward ? 3 : on.shard_gradients ? 2 : on.shard_optimizer ? 1 : 0;
}

/// Returns a value as a node of the setting's type.
Node value_node(const settings::SettingRow& row, std::string text) {
  switch (row.type) {
    case settings::Type::boolean:
      return Node::boolean(settings::parse_boolean(text).value_or(false));
    case settings::Type::integer:
    case settings::Type::count:
    case settings::Type::real: return Node::number(std::move(text));
    default: return Node::string(std::move(text));
  }
}

Node offload_block(settings::OffloadDevice device, const std::string& nvme_path) {
  Node block = Node::map({{"device", word_node(device)}});
  if (device == settings::OffloadDevice::nvme) {
    block.set("nvme_path", Node::string(nvme_path));
  }
  return block;
}

Node zero_block(const settings::ShardingSettings& sharding) {
  const int stage = stage_of(sharding.strategy);
  Node block = Node::map({{"stage", Node::number(stage)}});
  if (sharding.offload_optimizer != settings::OffloadDevice::none) {
    block.set("offload_optimizer",
              offload_block(sharding.offload_optimizer, sharding.offload_optimizer_nvme_path));
  }
  if (sharding.offload_param != settings::OffloadDevice::none) {
    block.set("offload_param",
              offload_block(sharding.offload_param, sharding.offload_param_nvme_path));
  }
  if (stage == 3) {
    if (sharding.hpz_partition_size > 1) {
      block.set("zero_hpz_partition_size", Node::number(sharding.hpz_partition_size));
    }
    block.set("stage3_gather_16bit_weights_on_model_save",
              Node::boolean(sharding.save_16bit_model));
  }
  return block;
}

/// True if the value of a setting has no meaning without another one.
bool is_left_out(const settings::SettingRow& row, const settings::ShardingSettings& sharding) {
  return (row == "fsdp_auto_wrap_policy"_key &&
          sharding.wrap_policy == settings::WrapPolicy::unset) ||
         (row == "fsdp_min_num_params"_key &&
          sharding.wrap_policy != settings::WrapPolicy::size_based) ||
         (row == "fsdp_activation_checkpointing_offload"_key &&
          !sharding.activation_checkpointing_offload);
}

/// Adds a key for each setting of the section that has a member and a text, and passes the filter.
void add_members(settings::Section section, const settings::ShardingSettings& sharding, Node& block,
                 auto&& filter) {
  for (const settings::SettingRow& row : settings::settings_table()) {
    if (row.section == section && row.engine.setting != nullptr && filter(row)) {
      if (std::string text = row.engine.setting(sharding); !text.empty()) {
        block.set(row.key, value_node(row, std::move(text)));
      }
    }
  }
}

}  // namespace

bool has_effect_with_fsdp(const settings::Settings& settings, const settings::SettingRow& row) {
  return settings.given(row) &&
         (row != "gradient_accumulation_steps"_key || settings.integer(row) > 1);
}

void add_training(const settings::Settings& settings, TrainingPlace place, Node& block) {
  for (const settings::SettingRow& row : settings.table()) {
    const bool has_place = place == TrainingPlace::yaml_block ||
                           (place == TrainingPlace::other_mode
                                ? has_effect_with_fsdp(settings, row)
                                : row.json.empty() == (place == TrainingPlace::beside_it));
    if (row.section == settings::Section::training && settings.given(row) && has_place) {
      block.set(place == TrainingPlace::deepspeed_file ? row.json : row.key,
                value_node(row, row.type == settings::Type::real ? settings.text(row)
                                                                 : settings.canonical(row)));
    }
  }
}

// Accelerate's file has a key for each member that Accelerate has a variable for.
Node fsdp_block(const settings::ShardingSettings& sharding, int version) {
  Node block = Node::map({{"fsdp_version", Node::number(version)}});
  block.set(settings::fsdp_strategy_key(version).name(),
            version == 1 ? word_node(sharding.strategy)
            : sharding.reshard_size > 0
                ? Node::number(sharding.reshard_size)
                : Node::boolean(settings::switches(sharding.strategy).reshard_after_forward));
  add_members(settings::Section::fsdp, sharding, block, [&](const settings::SettingRow& row) {
    return !row.environment.empty() && !is_lost_in_fsdp(version, row) &&
           !is_left_out(row, sharding);
  });
  block.set("fsdp_offload_params",
            Node::boolean(sharding.offload_param != settings::OffloadDevice::none));
  return block;
}

Node deepspeed_block(const settings::ShardingSettings& sharding,
                     const settings::Settings& settings) {
  const int stage = stage_of(sharding.strategy);
  Node block = Node::map({{strategy_key(ConfigForm::deepspeed).text(), Node::number(stage)}});
  add_training(settings, TrainingPlace::yaml_block, block);
  add_members(settings::Section::deepspeed, sharding, block, [&](const settings::SettingRow& row) {
    return stage == 3 || row.json.find(".stage3_") == std::string_view::npos;
  });
  return block;
}

void add_beside_file(const settings::Settings& settings, const settings::ShardingSettings& sharding,
                     Node& block) {
  add_members(settings::Section::deepspeed, sharding, block,
              [](const settings::SettingRow& row) { return row.json.empty(); });
  add_training(settings, TrainingPlace::beside_it, block);
}

Node deepspeed_json(const settings::ShardingSettings& sharding,
                    const settings::Settings& settings) {
  Node root = Node::map({{"train_batch_size", Node::string("auto")},
                         {"train_micro_batch_size_per_gpu", Node::string("auto")},
                         {"gradient_accumulation_steps", Node::string("auto")}});
  add_training(settings, TrainingPlace::deepspeed_file, root);
  if (sharding.mixed_precision == settings::MixedPrecision::fp16) {
    root.set("fp16",
             Node::map({{"enabled", Node::boolean(true)}, {"auto_cast", Node::boolean(true)}}));
  } else if (sharding.is_mixed()) {  // fp8 runs on top of bf16
    root.set("bf16", Node::map({{"enabled", Node::boolean(true)}}));
  }
  root.set("zero_optimization", zero_block(sharding));
  return root;
}

}  // namespace acc::documents
