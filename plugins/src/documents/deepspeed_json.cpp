#include "acc/plugins/deepspeed_json.hpp"

#include "acc/plugins/faults.hpp"

#include <algorithm>
#include <array>
#include <map>

namespace acc::plugins {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view kAuto = "auto";

/// Blocks with a schema: keys that no setting of ours holds, each with its default, at which it
/// says nothing. DeepSpeed 0.19.8 refuses unknown keys in them, and so do we.
const std::map<std::string_view, std::map<std::string_view, std::string_view>> kSchemas = {
    {"zero_optimization",
     {{"reduce_scatter", "true"},
      {"allgather_partitions", "true"},
      {"use_multi_rank_bucket_allreduce", "true"},
      {"compute_grad_norm", "true"},
      {"load_from_fp32_weights", "true"},
      {"elastic_checkpoint", "false"},
      {"ignore_unused_parameters", "true"},
      {"legacy_stage1", "false"},
      {"parameter_alignment", "false"},
      {"stage3_model_persistence_threshold", ""},
      {"stage3_module_granularity_threshold", "0"},
      {"stage3_use_all_reduce_for_fetch_params", "false"},
      {"stage3_allgather_sequential", "false"},
      {"memory_efficient_linear", "true"},
      {"pipeline_loading_checkpoint", "false"},
      {"override_module_apply", "true"},
      {"zero_quantized_weights", "false"},
      {"zero_quantized_nontrainable_weights", "false"},
      {"zero_quantized_gradients", "false"},
      {"enable_sanity_checks", "false"},
      {"log_trace_cache_warnings", "false"},
      {"save_muon_momentum_buffer_in_memory", "false"},
      {"leaf_module", ""},
      {"zenflow", ""},
      {"cpu_offload_use_pin_memory", "false"}}},
    {"zero_optimization.offload_param",
     {{"buffer_count", "5"},
      {"buffer_size", "1e8"},
      {"max_in_cpu", "1e9"},
      {"pin_memory", "true"}}},
    {"zero_optimization.offload_optimizer",
     {{"buffer_count", "4"},
      {"pin_memory", "true"},
      {"pipeline_read", "false"},
      {"pipeline_write", "false"},
      {"fast_init", "false"},
      {"ratio", "1.0"},
      {"super_offload", "false"},
      {"cpuadam_cores_perc", "0.8"}}},
    {"fp16",
     {{"enabled", "false"},
      {"auto_cast", "false"},
      {"loss_scale", "0"},
      {"initial_scale_power", "16"},
      {"loss_scale_window", "1000"},
      {"hysteresis", "2"},
      {"consecutive_hysteresis", "false"},
      {"min_loss_scale", "1"},
      {"fp16_master_weights_and_grads", "false"}}},
    {"bf16",
     {{"enabled", "false"},
      {"immediate_grad_update", "false"},
      {"check_grad_overflow", "true"},
      {"bf16_master_weights_and_grads", "false"},
      {"bf16_optimizer_states", "false"}}},
    {"activation_checkpointing",
     {{"partition_activations", "false"},
      {"cpu_checkpointing", "false"},
      {"contiguous_memory_optimization", "false"},
      {"synchronize_checkpoint_boundary", "false"},
      {"profile", "false"},
      {"number_checkpoints", ""}}},
    {"aio",
     {{"block_size", "1048576"},
      {"queue_depth", "8"},
      {"intra_op_parallelism", "1"},
      {"single_submit", "false"},
      {"overlap_events", "true"},
      {"use_gds", "false"}}},
};

/// Top-level keys without a setting of ours. What they ask for is the program's business.
constexpr std::array kOtherKeys = {
    "train_batch_size"sv,
    "train_micro_batch_size_per_gpu"sv,
    "optimizer"sv,
    "scheduler"sv,
    "prescale_gradients"sv,
    "gradient_predivide_factor"sv,
    "communication_data_type"sv,
    "steps_per_print"sv,
    "wall_clock_breakdown"sv,
    "zero_allow_untested_optimizer"sv,
    "zero_force_ds_cpu_optimizer"sv,
    "sparse_gradients"sv,
    "dump_state"sv,
    "memory_breakdown"sv,
    "flops_profiler"sv,
    "tensorboard"sv,
    "wandb"sv,
    "csv_monitor"sv,
    "comet"sv,
    "comms_logger"sv,
    "monitor_config"sv,
    "checkpoint"sv,
    "data_types"sv,
    "elasticity"sv,
    "autotuning"sv,
    "compression_training"sv,
    "data_efficiency"sv,
    "curriculum_learning"sv,
    "progressive_layer_drop"sv,
    "disable_allgather"sv,
    "amp"sv,
    "torch_autocast"sv,
    "compile"sv,
    "hybrid_engine"sv,
    "tensor_parallel"sv,
    "sequence_parallel_size"sv,
    "pipeline"sv,
    "nebula"sv,
    "eigenvalue"sv,
    "load_universal"sv,
    "dataloader_drop_last"sv,
    "sparse_attention"sv,
    "seq_parallel_communication_data_type"sv,
    "use_data_before_expert_parallelism"sv,
    "zero_allow_comm_data_type_fp32"sv,
};

constexpr std::array kRemoved = {"mics_shard_size"sv, "mics_hierarchical_params_gather"sv,
                                 "zeropp_loco_param"sv};

const SettingRow* row_at(std::string_view path) {
  const auto found = std::ranges::find(settings_table(), path, &SettingRow::json);
  return path.empty() || found == settings_table().end() ? nullptr : &*found;
}

bool same_value(const SettingRow& row, std::string_view a, std::string_view b) {
  switch (row.type) {
    case Type::boolean: return parse_boolean(a) == parse_boolean(b);
    case Type::integer:
    case Type::count: return parse_count(a) == parse_count(b);
    case Type::real: return parse_real(a) == parse_real(b);
    default: return lower(a) == lower(b);
  }
}

bool is_default(const Node& node, std::string_view fallback) {
  if (node.is_empty() || node.text == kAuto) {
    return true;
  }
  const auto number = parse_real(node.text);
  return number ? number == parse_real(fallback) : node.is_scalar() && node.text == fallback;
}

class Importer {
 public:
  Importer(const Document& document, int world_size, Settings& settings)
      : document_(document), world_size_(world_size), settings_(settings) {}

  std::vector<std::string> read() {
    if (document_.root.find("zero_optimization") == nullptr) {
      faults_.add(document_.path.string() + ": zero_optimization is missing");
    }
    for (const auto& [key, node] : document_.root.entries) {
      read_top(key, node);
    }
    read_missing_stage();
    read_precision();
    check_batch_sizes();
    faults_.raise();
    if (!without_effect_.empty()) {
      notices_.push_back(document_.path.string() + ": left to the program: " + without_effect_);
    }
    return std::move(notices_);
  }

 private:
  void read_top(const std::string& key, const Node& node) {
    const std::string name = key == "bfloat16" ? "bf16" : key;
    if (const SettingRow* row = row_at(name)) {
      set(*row, name, node);
    } else if (kSchemas.contains(name)) {
      read_block(name, node);
    } else if (std::ranges::find(kOtherKeys, name) != kOtherKeys.end()) {
      if (name != "train_batch_size" && !is_default(node, "false")) {
        leave_to_program(name);
      }
    } else {
      std::vector<std::string_view> known(kOtherKeys.begin(), kOtherKeys.end());
      known.insert(known.end(), {"zero_optimization", "gradient_clipping", "fp16", "bf16",
                                 "gradient_accumulation_steps", "activation_checkpointing"});
      faults_.add(node.where + ": unknown key \"" + key + "\"" + did_you_mean(key, known));
    }
  }

  void read_block(const std::string& block, const Node& node) {
    if (node.is_empty()) {
      return;
    }
    if (node.kind != Node::Kind::map) {
      faults_.add(node.where + ": " + block + " must be an object, { \"key\": value }");
      return;
    }
    for (const auto& [key, value] : node.entries) {
      read_inner(block, key, value);
    }
  }

  void read_inner(const std::string& block, const std::string& key, const Node& node) {
    const std::string path = block + "." + key;
    const auto& others = kSchemas.at(block);
    if (const SettingRow* row = row_at(path)) {
      set(*row, path, node);
    } else if (kSchemas.contains(path)) {
      read_block(path, node);
    } else if (const auto other = others.find(key); other != others.end()) {
      const bool read_elsewhere = key == "enabled";
      if (!read_elsewhere && !is_default(node, other->second)) {
        leave_to_program(path);
      }
    } else if (!read_old_name(key, node)) {
      unknown_inner(block, key, node);
    }
  }

  void unknown_inner(const std::string& block, const std::string& key, const Node& node) {
    if (std::ranges::find(kRemoved, key) != kRemoved.end()) {
      faults_.add(node.where + ": " + key + " was removed from DeepSpeed; take it out");
      return;
    }
    std::vector<std::string_view> known;
    for (const auto& [other, fallback] : kSchemas.at(block)) {
      known.push_back(other);
    }
    for (const SettingRow& row : settings_table()) {
      if (row.json.starts_with(block + ".")) {
        known.push_back(row.json.substr(block.size() + 1));
      }
    }
    faults_.add(node.where + ": unknown key \"" + key + "\" in " + block +
                did_you_mean(key, known));
  }

  bool read_old_name(const std::string& key, const Node& node) {
    struct Renamed {
      std::string_view old_key, key, path;
    };
    static constexpr std::array kRenamed = {
        Renamed{"cpu_offload", "offload_optimizer_device", "offload_optimizer.device"},
        Renamed{"cpu_offload_param", "offload_param_device", "offload_param.device"},
        Renamed{"stage3_gather_fp16_weights_on_model_save", "zero3_save_16bit_model",
                "stage3_gather_16bit_weights_on_model_save"},
    };
    const auto* found = std::ranges::find(kRenamed, key, &Renamed::old_key);
    if (found == kRenamed.end()) {
      return false;
    }
    Node translated = node;
    if (found->path.ends_with(".device")) {
      translated.text = node.text == "true" ? "cpu" : "none";
    }
    set(*find_setting(found->key), key, translated);
    notices_.push_back(node.where + ": " + key + " is read as " + std::string(found->path) +
                       ", its name today");
    return true;
  }

  void set(const SettingRow& row, const std::string& path, const Node& node) {
    if (node.is_empty() || node.text == kAuto) {
      return;  // the YAML file or a flag says it, else the default stands
    }
    if (!node.is_scalar()) {
      faults_.add(node.where + ": " + path + " must be " + expected_value(row));
      return;
    }
    const Source before = settings_.source(row.key);
    const bool given = before.kind == Source::Kind::flag || before.kind == Source::Kind::file;
    if (given && !same_value(row, node.text, settings_.text(row.key))) {
      faults_.add(node.where + ": " + path + " " + node.text + " contradicts " +
                  std::string(row.key) + " " + settings_.text(row.key) + " (" + before.where +
                  "); keep one of them, or write \"auto\" here");
    } else if (!given) {
      faults_.collect([&] {
        settings_.set(row.key, node.text, {Source::Kind::deepspeed_file, node.where});
      });
    }
  }

  /// A zero_optimization block without a stage is stage 0 in DeepSpeed.
  void read_missing_stage() {
    const Node* block = document_.root.find("zero_optimization");
    if (block != nullptr && block->find("stage") == nullptr) {
      Node stage;
      stage.kind = Node::Kind::number;
      stage.text = "0";
      stage.where = block->where;
      set(*find_setting("zero_stage"), "zero_optimization.stage (not given)", stage);
    }
  }

  /// fp16.enabled and bf16.enabled are one setting of ours; `false` on both says fp32.
  void read_precision() {
    const Node* chosen = nullptr;
    for (const std::string_view name : {"fp16"sv, "bf16"sv, "bfloat16"sv}) {
      const Node* block = document_.root.find(name);
      const Node* enabled = block == nullptr ? nullptr : block->find("enabled");
      if (enabled == nullptr || enabled->text == kAuto || enabled->text == "false") {
        continue;
      }
      if (enabled->text != "true") {
        faults_.add(enabled->where + ": " + std::string(name) +
                    ".enabled must be true, false or \"auto\", got \"" + enabled->text + "\"");
        continue;
      }
      if (chosen != nullptr) {
        faults_.add(enabled->where + ": fp16 and bf16 cannot both be enabled");
        continue;
      }
      chosen = enabled;
      Node value = *enabled;
      value.text = name == "fp16" ? "fp16" : "bf16";
      set(*find_setting("mixed_precision"), std::string(name) + ".enabled:", value);
    }
  }

  [[nodiscard]] std::optional<std::int64_t> batch_size(std::string_view key) {
    const Node* node = document_.root.find(key);
    if (node == nullptr || node->is_empty() || node->text == kAuto) {
      return std::nullopt;
    }
    const auto size = parse_integer(node->text);
    if (!size || *size < 1) {
      faults_.add(node->where + ": " + std::string(key) +
                  " must be an integer of at least 1, got \"" + node->text + "\"");
      return std::nullopt;
    }
    return size;
  }

  void check_batch_sizes() {
    const auto total = batch_size("train_batch_size");
    const auto micro = batch_size("train_micro_batch_size_per_gpu");
    if (!total) {
      return;
    }
    const std::int64_t steps = settings_.integer("gradient_accumulation_steps");
    const std::int64_t divisor = micro.value_or(1) * steps * world_size_;
    if (micro ? *total != divisor : *total % divisor != 0) {
      faults_.add(document_.root.find("train_batch_size")->where + ": train_batch_size " +
                  std::to_string(*total) + " must be " +
                  (micro ? std::to_string(*micro) : "the micro-batch") + " x " +
                  std::to_string(steps) + " accumulation steps x " + std::to_string(world_size_) +
                  " processes" + (micro ? " = " + std::to_string(divisor) : ""));
    }
  }

  void leave_to_program(const std::string& path) {
    without_effect_ += (without_effect_.empty() ? "" : ", ") + path;
  }

  const Document& document_;
  int world_size_;
  Settings& settings_;
  Faults faults_;
  std::vector<std::string> notices_;
  std::string without_effect_;
};

}  // namespace

std::vector<std::string> apply_deepspeed_json(const Document& document, int world_size,
                                              Settings& settings) {
  return Importer(document, world_size, settings).read();
}

}  // namespace acc::plugins
