#include "documents/deepspeed_schema.hpp"

#include <algorithm>
#include <array>

namespace acc::plugins::deepspeed {
namespace {

using namespace std::string_view_literals;

constexpr SettingRow key(std::string_view path, Type type, std::string_view fallback = {},
                         std::string_view allowed = {}) {
  const auto dot = path.rfind('.');
  return {.section = Section::zero,
          .key = dot == std::string_view::npos ? path : path.substr(dot + 1),
          .type = type,
          .fallback = fallback,
          .allowed = allowed,
          .json = path};
}
constexpr SettingRow flag(std::string_view path, std::string_view fallback) {
  return key(path, Type::boolean, fallback);
}
constexpr SettingRow count(std::string_view path, std::string_view fallback,
                           std::string_view allowed = "0..") {
  return key(path, Type::count, fallback, allowed);
}

/// Keys that no setting of ours holds, with the default at which they say nothing.
constexpr std::array kKeys = {
    count("train_batch_size", "", "1.."),
    count("train_micro_batch_size_per_gpu", "", "1.."),
    flag("prescale_gradients", "false"),
    key("gradient_predivide_factor", Type::real, "1.0", "0.."),
    key("communication_data_type", Type::choice, "", "fp32|fp16|bf16"),
    key("seq_parallel_communication_data_type", Type::choice, "fp32", "fp32|fp16|bf16"),
    count("steps_per_print", ""),
    flag("wall_clock_breakdown", "false"),
    flag("zero_allow_untested_optimizer", "false"),
    flag("zero_force_ds_cpu_optimizer", "true"),
    flag("sparse_gradients", "false"),
    flag("dump_state", "false"),
    flag("memory_breakdown", "false"),
    flag("disable_allgather", "false"),
    flag("dataloader_drop_last", "false"),
    flag("use_data_before_expert_parallelism", "false"),
    flag("zero_allow_comm_data_type_fp32", "false"),

    flag("zero_optimization.reduce_scatter", "true"),
    flag("zero_optimization.allgather_partitions", "true"),
    flag("zero_optimization.use_multi_rank_bucket_allreduce", "true"),
    flag("zero_optimization.compute_grad_norm", "true"),
    flag("zero_optimization.load_from_fp32_weights", "true"),
    flag("zero_optimization.elastic_checkpoint", "false"),
    flag("zero_optimization.ignore_unused_parameters", "true"),
    flag("zero_optimization.legacy_stage1", "false"),
    flag("zero_optimization.parameter_alignment", "false"),
    count("zero_optimization.stage3_model_persistence_threshold", ""),
    count("zero_optimization.stage3_module_granularity_threshold", "0"),
    flag("zero_optimization.stage3_use_all_reduce_for_fetch_params", "false"),
    flag("zero_optimization.stage3_allgather_sequential", "false"),
    flag("zero_optimization.memory_efficient_linear", "true"),
    flag("zero_optimization.pipeline_loading_checkpoint", "false"),
    flag("zero_optimization.override_module_apply", "true"),
    flag("zero_optimization.zero_quantized_weights", "false"),
    flag("zero_optimization.zero_quantized_nontrainable_weights", "false"),
    flag("zero_optimization.zero_quantized_gradients", "false"),
    flag("zero_optimization.enable_sanity_checks", "false"),
    flag("zero_optimization.log_trace_cache_warnings", "false"),
    flag("zero_optimization.save_muon_momentum_buffer_in_memory", "false"),

    count("zero_optimization.offload_param.buffer_count", "5", "1.."),
    count("zero_optimization.offload_param.buffer_size", "1e8"),
    count("zero_optimization.offload_param.max_in_cpu", "1e9"),
    flag("zero_optimization.offload_param.pin_memory", "true"),

    count("zero_optimization.offload_optimizer.buffer_count", "4", "1.."),
    flag("zero_optimization.offload_optimizer.pin_memory", "true"),
    flag("zero_optimization.offload_optimizer.pipeline_read", "false"),
    flag("zero_optimization.offload_optimizer.pipeline_write", "false"),
    flag("zero_optimization.offload_optimizer.fast_init", "false"),
    key("zero_optimization.offload_optimizer.ratio", Type::real, "1.0", "0..1"),
    flag("zero_optimization.offload_optimizer.super_offload", "false"),
    key("zero_optimization.offload_optimizer.cpuadam_cores_perc", Type::real, "0.8", "0..1"),

    flag("fp16.enabled", "false"),
    flag("fp16.auto_cast", "false"),
    key("fp16.loss_scale", Type::real, "0", "0.."),
    count("fp16.initial_scale_power", "16"),
    count("fp16.loss_scale_window", "1000"),
    count("fp16.hysteresis", "2"),
    flag("fp16.consecutive_hysteresis", "false"),
    count("fp16.min_loss_scale", "1"),
    flag("fp16.fp16_master_weights_and_grads", "false"),

    flag("bf16.enabled", "false"),
    flag("bf16.immediate_grad_update", "false"),
    flag("bf16.check_grad_overflow", "true"),
    flag("bf16.bf16_master_weights_and_grads", "false"),
    flag("bf16.bf16_optimizer_states", "false"),

    flag("activation_checkpointing.partition_activations", "false"),
    flag("activation_checkpointing.cpu_checkpointing", "false"),
    flag("activation_checkpointing.contiguous_memory_optimization", "false"),
    flag("activation_checkpointing.synchronize_checkpoint_boundary", "false"),
    flag("activation_checkpointing.profile", "false"),
    count("activation_checkpointing.number_checkpoints", "", "1.."),

    count("aio.block_size", "1048576", "1.."),
    count("aio.queue_depth", "8", "1.."),
    count("aio.intra_op_parallelism", "1", "1.."),
    flag("aio.single_submit", "false"),
    flag("aio.overlap_events", "true"),
    flag("aio.use_gds", "false"),
};

constexpr std::array kBlocks = {"zero_optimization"sv,
                                "zero_optimization.offload_param"sv,
                                "zero_optimization.offload_optimizer"sv,
                                "fp16"sv,
                                "bf16"sv,
                                "activation_checkpointing"sv,
                                "aio"sv};

constexpr std::array kOpaque = {
    "zero_optimization.leaf_module"sv,
    "zero_optimization.zenflow"sv,
    "amp"sv,
    "autotuning"sv,
    "checkpoint"sv,
    "comet"sv,
    "comms_logger"sv,
    "compile"sv,
    "compression_training"sv,
    "csv_monitor"sv,
    "curriculum_learning"sv,
    "data_efficiency"sv,
    "data_types"sv,
    "eigenvalue"sv,
    "elasticity"sv,
    "flops_profiler"sv,
    "hybrid_engine"sv,
    "load_universal"sv,
    "monitor_config"sv,
    "nebula"sv,
    "pipeline"sv,
    "progressive_layer_drop"sv,
    "sequence_parallel_size"sv,
    "sparse_attention"sv,
    "tensor_parallel"sv,
    "tensorboard"sv,
    "torch_autocast"sv,
    "wandb"sv,
};

constexpr std::array kRemoved = {"zero_optimization.mics_shard_size"sv,
                                 "zero_optimization.mics_hierarchical_params_gather"sv,
                                 "zero_optimization.zeropp_loco_param"sv};

constexpr std::array kRenamed = {
    Renamed{"zero_optimization.cpu_offload", "zero_optimization.offload_optimizer.device", true},
    Renamed{"zero_optimization.cpu_offload_param", "zero_optimization.offload_param.device", true},
    Renamed{"zero_optimization.cpu_offload_use_pin_memory",
            "zero_optimization.offload_optimizer.pin_memory", false},
    Renamed{"zero_optimization.stage3_gather_fp16_weights_on_model_save",
            "zero_optimization.stage3_gather_16bit_weights_on_model_save", false},
    Renamed{"aio.thread_count", "aio.intra_op_parallelism", false},
};

struct Filling {
  std::string_view path;
  Auto by;
};
constexpr std::array kFillings = {
    Filling{"gradient_accumulation_steps", Auto::settings},
    Filling{"gradient_clipping", Auto::settings},
    Filling{"zero_optimization.stage", Auto::settings},
    Filling{"zero_optimization.offload_optimizer.device", Auto::settings},
    Filling{"zero_optimization.offload_optimizer.nvme_path", Auto::settings},
    Filling{"zero_optimization.offload_param.device", Auto::settings},
    Filling{"zero_optimization.offload_param.nvme_path", Auto::settings},
    Filling{"zero_optimization.stage3_gather_16bit_weights_on_model_save", Auto::settings},
    Filling{"fp16.enabled", Auto::precision},
    Filling{"bf16.enabled", Auto::precision},
    Filling{"train_batch_size", Auto::data},
    Filling{"train_micro_batch_size_per_gpu", Auto::data},
    Filling{"zero_optimization.reduce_bucket_size", Auto::model},
    Filling{"zero_optimization.stage3_prefetch_bucket_size", Auto::model},
    Filling{"zero_optimization.stage3_param_persistence_threshold", Auto::model},
};

bool contains(const auto& paths, std::string_view path) {
  return std::ranges::find(paths, path) != paths.end();
}

/// The name of a path that lies directly in `block`, else "".
std::string_view name_in(std::string_view block, std::string_view path) {
  if (!block.empty()) {
    if (!path.starts_with(block) || path.substr(block.size(), 1) != ".") {
      return {};
    }
    path.remove_prefix(block.size() + 1);
  }
  return path.find('.') == std::string_view::npos ? path : std::string_view();
}

}  // namespace

const SettingRow* find_key(std::string_view path) {
  if (path.empty()) {
    return nullptr;
  }
  const auto setting = std::ranges::find(settings_table(), path, &SettingRow::json);
  if (setting != settings_table().end()) {
    return &*setting;
  }
  const auto* found = std::ranges::find(kKeys, path, &SettingRow::json);
  return found == kKeys.end() ? nullptr : found;
}

bool is_left_to_program(const SettingRow& row) {
  return &row >= kKeys.data() && &row < kKeys.data() + kKeys.size();
}

bool is_block(std::string_view path) {
  return contains(kBlocks, path);
}

bool is_opaque(std::string_view path) {
  return contains(kOpaque, path);
}

std::vector<std::string_view> names_in(std::string_view block) {
  std::vector<std::string_view> names;
  const auto add = [&](std::string_view path) {
    if (const std::string_view name = name_in(block, path); !name.empty()) {
      names.push_back(name);
    }
  };
  for (const SettingRow& row : settings_table()) {
    add(row.json);
  }
  std::ranges::for_each(kKeys, add, &SettingRow::json);
  std::ranges::for_each(kBlocks, add);
  std::ranges::for_each(kOpaque, add);
  if (block.empty()) {
    names.insert(names.end(), {"optimizer", "scheduler"});
  }
  return names;
}

Auto filled_by(std::string_view path) {
  const auto* found = std::ranges::find(kFillings, path, &Filling::path);
  return found == kFillings.end() ? Auto::nobody : found->by;
}

bool is_removed(std::string_view path) {
  return contains(kRemoved, path);
}

const Renamed* find_renamed(std::string_view path) {
  const auto* found = std::ranges::find(kRenamed, path, &Renamed::old_path);
  return found == kRenamed.end() ? nullptr : found;
}

}  // namespace acc::plugins::deepspeed
