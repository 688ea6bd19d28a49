// SPDX-License-Identifier: Apache-2.0
#include "documents/config_writer.hpp"

#include "acc/plugins/words.hpp"

namespace acc::plugins {
namespace {

/// Returns a value of an enumeration in the spelling of the settings.
Node word_node(auto value) {
  return Node::string(std::string(word_of(value).setting));
}

/// Joins names with commas, as on the command line.
std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    text += (text.empty() ? "" : ",") + name;
  }
  return text;
}

/// Returns the ZeRO stage that is nearest to a strategy.
int stage_of(Strategy strategy) {
  switch (strategy) {
    case Strategy::no_shard: return 0;
    case Strategy::shard_optimizer: return 1;
    case Strategy::shard_grad_op:
    case Strategy::hybrid_shard_zero2: return 2;
    case Strategy::full_shard:
    case Strategy::hybrid_shard: return 3;
  }
  return 0;
}

/// True if the strategy frees gathered weights after forward.
bool reshards(Strategy strategy) {
  return strategy == Strategy::full_shard || strategy == Strategy::hybrid_shard;
}

void add_wrapping(const ShardingSettings& sharding, Node& block) {
  if (sharding.wrap_policy != WrapPolicy::unset) {
    block.set("fsdp_auto_wrap_policy", word_node(sharding.wrap_policy));
  }
  if (!sharding.transformer_layer_classes.empty()) {
    block.set("fsdp_transformer_layer_cls_to_wrap",
              Node::string(joined(sharding.transformer_layer_classes)));
  }
  if (sharding.wrap_policy == WrapPolicy::size_based) {
    block.set("fsdp_min_num_params", Node::number(sharding.min_num_params));
  }
  if (!sharding.ignored_modules.empty()) {
    block.set("fsdp_ignored_modules", Node::string(sharding.ignored_modules));
  }
}

void add_words_of_version_1(const ShardingSettings& sharding, Node& block) {
  block.set("fsdp_sharding_strategy", word_node(sharding.strategy));
  block.set("fsdp_backward_prefetch", word_node(sharding.backward_prefetch));
  block.set("fsdp_forward_prefetch", Node::boolean(sharding.forward_prefetch));
  block.set("fsdp_sync_module_states", Node::boolean(sharding.sync_module_states));
  block.set("fsdp_use_orig_params", Node::boolean(sharding.use_orig_params));
}

void add_words_of_version_2(const ShardingSettings& sharding, Node& block) {
  block.set("fsdp_reshard_after_forward", sharding.reshard_size > 0
                                              ? Node::number(sharding.reshard_size)
                                              : Node::boolean(reshards(sharding.strategy)));
  if (sharding.activation_checkpointing_offload) {
    block.set("fsdp_activation_checkpointing_offload", Node::boolean(true));
  }
}

Node offload_block(OffloadDevice device, const std::string& nvme_path) {
  Node block = Node::map({{"device", word_node(device)}});
  if (device == OffloadDevice::nvme) {
    block.set("nvme_path", Node::string(nvme_path));
  }
  return block;
}

Node zero_block(const ShardingSettings& sharding) {
  const int stage = stage_of(sharding.strategy);
  Node block = Node::map({{"stage", Node::number(stage)}});
  if (sharding.offload_optimizer != OffloadDevice::none) {
    block.set("offload_optimizer",
              offload_block(sharding.offload_optimizer, sharding.offload_optimizer_nvme_path));
  }
  if (sharding.offload_param != OffloadDevice::none) {
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

/// Returns the value of a setting as a node of its type.
Node value_node(const SettingRow& row, const Settings& settings) {
  switch (row.type) {
    case Type::boolean: return Node::boolean(settings.boolean(row));
    case Type::choice: return Node::string(settings.choice(row));
    case Type::integer: return Node::number(settings.integer(row));
    default: return Node::number(settings.text(row));
  }
}

}  // namespace

void add_training(const Settings& settings, TrainingPlace place, Node& block) {
  for (const SettingRow& row : settings.table()) {
    const bool has_place = place == TrainingPlace::yaml_block ||
                           row.json.empty() == (place == TrainingPlace::beside_it);
    if (row.section == Section::training && settings.given(row) && has_place) {
      block.set(place == TrainingPlace::deepspeed_file ? row.json : row.key,
                value_node(row, settings));
    }
  }
}

Node fsdp_block(const ShardingSettings& sharding, int version) {
  Node block = Node::map({{"fsdp_version", Node::number(version)}});
  (version == 1 ? add_words_of_version_1 : add_words_of_version_2)(sharding, block);
  add_wrapping(sharding, block);
  block.set("fsdp_state_dict_type", word_node(sharding.state_dict_type));
  block.set("fsdp_offload_params", Node::boolean(sharding.offload_param != OffloadDevice::none));
  block.set("fsdp_cpu_ram_efficient_loading", Node::boolean(sharding.cpu_ram_efficient_loading));
  block.set("fsdp_activation_checkpointing", Node::boolean(sharding.activation_checkpointing));
  return block;
}

Node deepspeed_block(const ShardingSettings& sharding, const Settings& settings) {
  const int stage = stage_of(sharding.strategy);
  Node block = Node::map({{"zero_stage", Node::number(stage)}});
  add_training(settings, TrainingPlace::yaml_block, block);
  block.set("offload_optimizer_device", word_node(sharding.offload_optimizer));
  block.set("offload_param_device", word_node(sharding.offload_param));
  if (sharding.offload_optimizer == OffloadDevice::nvme) {
    block.set("offload_optimizer_nvme_path", Node::string(sharding.offload_optimizer_nvme_path));
  }
  if (sharding.offload_param == OffloadDevice::nvme) {
    block.set("offload_param_nvme_path", Node::string(sharding.offload_param_nvme_path));
  }
  block.set("zero3_init_flag", Node::boolean(sharding.zero3_init));
  if (stage == 3) {
    block.set("zero3_save_16bit_model", Node::boolean(sharding.save_16bit_model));
  }
  return block;
}

Node deepspeed_json(const ShardingSettings& sharding, const Settings& settings) {
  Node root = Node::map({{"train_batch_size", Node::string("auto")},
                         {"train_micro_batch_size_per_gpu", Node::string("auto")},
                         {"gradient_accumulation_steps", Node::string("auto")}});
  add_training(settings, TrainingPlace::deepspeed_file, root);
  if (sharding.mixed_precision == MixedPrecision::fp16) {
    root.set("fp16",
             Node::map({{"enabled", Node::boolean(true)}, {"auto_cast", Node::boolean(true)}}));
  } else if (sharding.mixed_precision != MixedPrecision::no) {  // fp8 runs on top of bf16
    root.set("bf16", Node::map({{"enabled", Node::boolean(true)}}));
  }
  root.set("zero_optimization", zero_block(sharding));
  return root;
}

}  // namespace acc::plugins
