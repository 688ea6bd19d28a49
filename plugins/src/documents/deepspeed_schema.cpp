// SPDX-License-Identifier: Apache-2.0
#include "documents/deepspeed_schema.hpp"

#include "acc/documents/deepspeed_json.hpp"

#include <algorithm>
#include <array>

namespace acc::documents::deepspeed {
namespace {

// The keys of DeepSpeed 0.19.8 that have no row in the settings table, with their defaults. They
// are checked here, because DeepSpeed reports a misspelled key late or not at all.

using namespace std::string_view_literals;

constexpr settings::SettingRow key(std::string_view path, settings::Type type,
                                   std::string_view fallback = {}, std::string_view allowed = {}) {
  const auto dot = path.rfind('.');
  return {.section = settings::Section::zero,
          .key = dot == std::string_view::npos ? path : path.substr(dot + 1),
          .type = type,
          .fallback = fallback,
          .allowed = allowed,
          .json = path};
}
constexpr settings::SettingRow flag(std::string_view path, std::string_view fallback) {
  return key(path, settings::Type::boolean, fallback);
}
constexpr settings::SettingRow count(std::string_view path, std::string_view fallback,
                                     std::string_view allowed = "0..") {
  return key(path, settings::Type::count, fallback, allowed);
}

constexpr settings::SettingRow filled_in(settings::SettingRow row) {
  row.program_fills_in = true;
  return row;
}

/// A key that only a program can use. row.fallback: DeepSpeed's default, with which the key has no
/// effect.
struct ProgramsKey {
  settings::SettingRow row;
  bool refused = false;  ///< libacc_runtime lacks the feature and refuses other values

  // NOLINTNEXTLINE(google-explicit-constructor): most entries of the table are plain rows
  constexpr ProgramsKey(const settings::SettingRow& key, bool is_refused = false)
      : row(key), refused(is_refused) {}
};

constexpr ProgramsKey refused(const settings::SettingRow& row) {
  return {row, true};
}

// Keys that are not refused do not concern the runtime: logging, data loading, Python modules, and
// buffers of DeepSpeed's offload to NVMe that the runtime does not have.
constexpr ProgramsKey kKeys[] = {
    filled_in(count("train_batch_size", "", "1..")),
    filled_in(count("train_micro_batch_size_per_gpu", "", "1..")),
    refused(flag("prescale_gradients", "false")),
    refused(key("gradient_predivide_factor", settings::Type::real, "1.0", "0..")),
    key("seq_parallel_communication_data_type", settings::Type::choice, "fp32", "fp32|fp16|bf16"),
    count("steps_per_print", ""),
    flag("wall_clock_breakdown", "false"),
    flag("zero_allow_untested_optimizer", "false"),
    flag("zero_force_ds_cpu_optimizer", "true"),
    refused(flag("sparse_gradients", "false")),
    flag("dump_state", "false"),
    flag("memory_breakdown", "false"),
    refused(flag("disable_allgather", "false")),
    flag("dataloader_drop_last", "false"),
    flag("use_data_before_expert_parallelism", "false"),
    flag("zero_allow_comm_data_type_fp32", "false"),

    refused(flag("zero_optimization.reduce_scatter", "true")),
    refused(flag("zero_optimization.allgather_partitions", "true")),
    refused(flag("zero_optimization.use_multi_rank_bucket_allreduce", "true")),
    refused(flag("zero_optimization.compute_grad_norm", "true")),
    refused(flag("zero_optimization.load_from_fp32_weights", "true")),
    flag("zero_optimization.elastic_checkpoint", "false"),
    refused(flag("zero_optimization.ignore_unused_parameters", "true")),
    refused(flag("zero_optimization.legacy_stage1", "false")),
    refused(flag("zero_optimization.parameter_alignment", "false")),
    refused(count("zero_optimization.stage3_module_granularity_threshold", "0")),
    refused(flag("zero_optimization.stage3_use_all_reduce_for_fetch_params", "false")),
    refused(flag("zero_optimization.stage3_allgather_sequential", "false")),
    flag("zero_optimization.memory_efficient_linear", "true"),
    flag("zero_optimization.pipeline_loading_checkpoint", "false"),
    flag("zero_optimization.override_module_apply", "true"),
    refused(flag("zero_optimization.zero_quantized_nontrainable_weights", "false")),
    flag("zero_optimization.enable_sanity_checks", "false"),
    flag("zero_optimization.log_trace_cache_warnings", "false"),
    flag("zero_optimization.save_muon_momentum_buffer_in_memory", "false"),

    count("zero_optimization.offload_param.buffer_count", "5", "1.."),
    count("zero_optimization.offload_param.buffer_size", "1e8"),
    count("zero_optimization.offload_param.max_in_cpu", "1e9"),
    refused(flag("zero_optimization.offload_param.pin_memory", "true")),

    refused(flag("zero_optimization.offload_optimizer.pin_memory", "true")),
    flag("zero_optimization.offload_optimizer.pipeline_read", "false"),
    flag("zero_optimization.offload_optimizer.pipeline_write", "false"),
    flag("zero_optimization.offload_optimizer.fast_init", "false"),
    refused(key("zero_optimization.offload_optimizer.ratio", settings::Type::real, "1.0", "0..1")),
    refused(flag("zero_optimization.offload_optimizer.super_offload", "false")),
    key("zero_optimization.offload_optimizer.cpuadam_cores_perc", settings::Type::real, "0.8",
        "0..1"),

    flag("fp16.enabled", "false"),
    flag("fp16.auto_cast", "false"),
    refused(flag("fp16.fp16_master_weights_and_grads", "false")),

    flag("bf16.enabled", "false"),
    flag("bf16.immediate_grad_update", "false"),
    flag("bf16.check_grad_overflow", "true"),
    refused(flag("bf16.bf16_master_weights_and_grads", "false")),
    refused(flag("bf16.bf16_optimizer_states", "false")),

    refused(flag("activation_checkpointing.partition_activations", "false")),
    refused(flag("activation_checkpointing.cpu_checkpointing", "false")),
    refused(flag("activation_checkpointing.contiguous_memory_optimization", "false")),
    flag("activation_checkpointing.synchronize_checkpoint_boundary", "false"),
    flag("activation_checkpointing.profile", "false"),
    count("activation_checkpointing.number_checkpoints", "", "1.."),

    refused(key("data_types.grad_accum_dtype", settings::Type::choice, "fp32", "fp32|fp16|bf16")),

    refused(flag("aio.use_gds", "false")),
};

constexpr std::array kBlocks = {"zero_optimization"sv,
                                "zero_optimization.offload_param"sv,
                                "zero_optimization.offload_optimizer"sv,
                                "fp16"sv,
                                "bf16"sv,
                                "activation_checkpointing"sv,
                                "data_types"sv,
                                "aio"sv};

/// A block or value of DeepSpeed that acclaunch does not examine.
struct Opaque {
  std::string_view path;
  bool refused = false;  ///< libacc_runtime lacks the feature
};
constexpr Opaque kOpaque[] = {
    {"zero_optimization.leaf_module"},
    {"zero_optimization.zenflow", true},
    {"amp", true},
    {"autotuning"},
    {"checkpoint"},
    {"comet"},
    {"comms_logger"},
    {"compile"},
    {"compression_training", true},
    {"csv_monitor"},
    {"curriculum_learning"},
    {"data_efficiency"},
    {"eigenvalue", true},
    {"elasticity", true},
    {"flops_profiler"},
    {"hybrid_engine", true},
    {"load_universal"},
    {"monitor_config"},
    {"nebula", true},
    {"pipeline", true},
    {"progressive_layer_drop", true},
    {"sequence_parallel_size", true},
    {"sparse_attention", true},
    {"tensor_parallel", true},
    {"tensorboard"},
    {"torch_autocast", true},
    {"wandb"},
};

constexpr std::array kRemoved = {"zero_optimization.mics_shard_size"sv,
                                 "zero_optimization.mics_hierarchical_params_gather"sv,
                                 "zero_optimization.zeropp_loco_param"sv};

constexpr std::array kRenamedPaths = {
    Renamed{"zero_optimization.cpu_offload", "zero_optimization.offload_optimizer.device", true},
    Renamed{"zero_optimization.cpu_offload_param", "zero_optimization.offload_param.device", true},
    Renamed{"zero_optimization.cpu_offload_use_pin_memory",
            "zero_optimization.offload_optimizer.pin_memory", false},
    Renamed{"zero_optimization.stage3_gather_fp16_weights_on_model_save",
            "zero_optimization.stage3_gather_16bit_weights_on_model_save", false},
    Renamed{"aio.thread_count", "aio.intra_op_parallelism", false},
};

bool has_path(const auto& paths, std::string_view path) {
  return std::ranges::find(paths, path) != paths.end();
}

const ProgramsKey* find_programs_key(std::string_view path) {
  const auto json = [](const ProgramsKey& key) { return key.row.json; };
  const auto* found = std::ranges::find(kKeys, path, json);
  return found == std::end(kKeys) ? nullptr : found;
}

const Opaque* find_opaque(std::string_view path) {
  const auto* found = std::ranges::find(kOpaque, path, &Opaque::path);
  return found == std::end(kOpaque) ? nullptr : found;
}

/// Returns the last name of a path that lies directly in `block`, else "".
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

const settings::SettingRow* find_key(std::string_view path) {
  if (path.empty()) {
    return nullptr;
  }
  const auto setting =
      std::ranges::find(settings::settings_table(), path, &settings::SettingRow::json);
  if (setting != settings::settings_table().end()) {
    return &*setting;
  }
  const ProgramsKey* key = find_programs_key(path);
  return key == nullptr ? nullptr : &key->row;
}

bool is_left_to_program(const settings::SettingRow& row) {
  return find_programs_key(row.json) != nullptr;
}

bool is_refused_by_runtime(std::string_view path) {
  const ProgramsKey* key = find_programs_key(path);
  const Opaque* opaque = find_opaque(path);
  return (key != nullptr && key->refused) || (opaque != nullptr && opaque->refused);
}

bool is_block(std::string_view path) {
  return has_path(kBlocks, path);
}

bool is_opaque(std::string_view path) {
  return find_opaque(path) != nullptr;
}

std::vector<std::string_view> names_in(std::string_view block) {
  std::vector<std::string_view> names;
  const auto add = [&](std::string_view path) {
    if (const std::string_view name = name_in(block, path); !name.empty()) {
      names.push_back(name);
    }
  };
  for (const settings::SettingRow& row : settings::settings_table()) {
    add(row.json);
  }
  for (const ProgramsKey& each : kKeys) {
    add(each.row.json);
  }
  std::ranges::for_each(kBlocks, add);
  std::ranges::for_each(kOpaque, add, &Opaque::path);
  if (block.empty()) {
    names.insert(names.end(), {"optimizer", "scheduler"});
  }
  return names;
}

Auto filled_by(std::string_view path) {
  const settings::SettingRow* row = find_key(path);
  if (row != nullptr && row->program_fills_in) {
    return Auto::program;
  }
  // Accelerate's plugin has the keys of its own file, and mixed_precision for fp16 and bf16.
  const bool is_of_plugin = row != nullptr && (row->section == settings::Section::deepspeed ||
                                               row->exported != settings::Export::never);
  return is_of_plugin || path.ends_with(".enabled") ? Auto::settings : Auto::nobody;
}

bool is_removed(std::string_view path) {
  return has_path(kRemoved, path);
}

const Renamed* find_renamed(std::string_view path) {
  const auto* found = std::ranges::find(kRenamedPaths, path, &Renamed::old_path);
  return found == kRenamedPaths.end() ? nullptr : found;
}

}  // namespace acc::documents::deepspeed

namespace acc::documents {

std::vector<ForeignDeepSpeedKey> foreign_deepspeed_keys() {
  std::vector<ForeignDeepSpeedKey> keys;
  for (const auto& [row, refused] : deepspeed::kKeys) {
    if (row.key != "enabled") {  // fp16.enabled and bf16.enabled set mixed_precision
      keys.push_back({row.json, row.fallback, refused});
    }
  }
  for (const auto& [path, refused] : deepspeed::kOpaque) {
    keys.push_back({path, {}, refused});
  }
  return keys;
}

}  // namespace acc::documents
